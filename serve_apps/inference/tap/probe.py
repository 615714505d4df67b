"""A second way to see the residual stream, for the self-test alone: what each block's successor is given.

It shares nothing with the tap but the list of blocks: no buffer, no plan, no rows of requests.
"""

from __future__ import annotations

from typing import Any

import torch


class Probe:
    """Listens to every forward pass until `take`. The successor of the last block is whatever module beside the blocks
    is called first with the stream, which is the final norm.
    """

    def __init__(self, model: torch.nn.Module, blocks: list[torch.nn.Module], hidden: int) -> None:
        self._hidden = hidden
        self._last = len(blocks) - 1
        self._seen: list[list[torch.Tensor]] = [[] for _ in blocks]
        self._awaited: int | None = None  # the block whose successor is called next
        self._handles = [block.register_forward_hook(self._after(layer)) for layer, block in enumerate(blocks)]
        for layer, block in enumerate(blocks[1:]):
            self._handles.append(block.register_forward_pre_hook(self._before(layer), with_kwargs=True))
        for module in _beside(model, blocks):
            self._handles.append(module.register_forward_pre_hook(self._before(self._last), with_kwargs=True))

    def take(self) -> list[bytes]:
        """Of each block: [rows, hidden] in the model's dtype, the rows of all passes in their order."""
        for handle in self._handles:
            handle.remove()
        return [
            torch.cat(seen).cpu().contiguous().view(torch.uint8).numpy().tobytes() if seen else b""
            for seen in self._seen
        ]

    def _after(self, layer: int) -> Any:
        def hook(*_: Any) -> None:
            self._awaited = layer

        return hook

    def _before(self, layer: int) -> Any:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            halves = [value for value in (*args, *kwargs.values()) if self._is_stream(value)]
            if self._awaited == layer and halves:
                self._awaited = None
                self._seen[layer].append(halves[0] + halves[1] if len(halves) == 2 else halves[0].clone())

        return hook

    def _is_stream(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[-1:] == (self._hidden,)


def _beside(model: torch.nn.Module, blocks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """The modules that stand beside the list of blocks."""
    for parent in model.modules():
        children = list(parent.children())
        for child in children:
            if isinstance(child, torch.nn.ModuleList) and list(child) == blocks:
                return [other for other in children if other is not child]
    return []
