"""What Transformers makes of the same weights: the residual stream after every block, steered by plain hooks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from acs.platform.inference.contract import Steering


@dataclass(frozen=True)
class Forward:
    stream: np.ndarray  # float32 [layers, positions, hidden]
    logprobs: np.ndarray  # float32 [positions, vocabulary]


class Reference:
    def __init__(self, checkpoint: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.layers = len(self._model.model.layers)
        self.hidden = int(self._model.config.hidden_size)

    def forward(self, token_ids: Sequence[int], steering: Sequence[Steering] = ()) -> Forward:
        streams: dict[int, torch.Tensor] = {}

        def hook_of(layer: int) -> Any:
            def hook(_module: Any, _args: Any, output: Any) -> Any:
                first = output[0] if isinstance(output, tuple) else output
                steered = steer(first, layer, steering)
                streams[layer] = steered[0]
                return (steered, *output[1:]) if isinstance(output, tuple) else steered

            return hook

        with ExitStack() as hooks, torch.inference_mode():
            for layer, block in enumerate(self._model.model.layers):
                hooks.callback(block.register_forward_hook(hook_of(layer)).remove)
            logits = self._model(torch.tensor([list(token_ids)])).logits[0]
        stream = torch.stack([streams[layer] for layer in range(self.layers)])
        return Forward(stream.numpy(), torch.log_softmax(logits, -1).numpy())


def steer(stream: torch.Tensor, layer: int, steering: Sequence[Steering]) -> torch.Tensor:
    """float32 [1, positions, hidden] with each vector added as the contract says."""
    norms = stream.norm(dim=-1, keepdim=True)
    steered = stream.clone()
    for one in steering:
        if layer not in one.layers:
            continue
        values = np.frombuffer(one.values, "<f4").reshape(len(one.layers), -1, stream.shape[-1])
        rows = torch.tensor(values[one.layers.index(layer)])
        where = range(stream.shape[1]) if one.positions is None else one.positions
        for row, position in enumerate(where):
            vector = rows[0 if one.positions is None else row]
            if position < stream.shape[1]:
                size = norms[0, position] / vector.norm() if one.norm_match and vector.norm() > 0 else 1.0
                steered[0, position] += one.scale * vector * size
    return steered
