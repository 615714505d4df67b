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
