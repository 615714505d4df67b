"""A model as an ingress serves it: its catalogue entry, its tokenizer, its Engine and its breaker together."""

from __future__ import annotations

from dataclasses import dataclass

from acs.platform.catalogue import Model
from acs.platform.completions.breaker import Breaker
from acs.platform.inference.contract import Engine
from acs.platform.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    entry: Model
    tokenizer: ModelTokenizer
    engine: Engine
    breaker: Breaker

    @property
    def max_model_len(self) -> int:
        """The most tokens of prompt and continuation together: the engine's setting, else the checkpoint's own."""
        config = self.tokenizer.config
        return int(self.entry.engine.get("max_model_len") or config["max_position_embeddings"])

    @property
    def layers(self) -> int:
        return int(self.tokenizer.config["num_hidden_layers"])

    @property
    def hidden_size(self) -> int:
        return int(self.tokenizer.config["hidden_size"])

    def capture_bytes(self, layers: int) -> int:
        """Of one position, when so many Layers are captured."""
        return layers * self.hidden_size * self.activation_item_bytes

    @property
    def activation_item_bytes(self) -> int:
        """Of one number of the residual stream: a catalogue entry with activations names the dtype."""
        return {"float32": 4}.get(str(self.entry.engine.get("dtype")), 2)
