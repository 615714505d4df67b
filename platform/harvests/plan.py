"""From a harvest request of sound shape to what it will read and write: prompts as tokens, Layers, shards, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from acs.platform.completions.plan import check_vocabulary, find_model, tokenise
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ContextLengthExceeded, HarvestUnsupported, InvalidRequest
from acs.platform.harvests.fields import ALL
from acs.platform.harvests.request import HarvestRequest
from acs.platform.limits import Limits

SHARD_PROMPTS = 32


@dataclass(frozen=True, slots=True)
class HarvestPlan:
    model: ServedModel
    prompts: list[list[int]]
    layers: list[int]  # ascending
    positions: str  # all, last, mean
    directions: np.ndarray | None  # float32 [directions, hidden], each of length 1
    cuts: list[int]  # shard i has the prompts from cuts[i] to before cuts[i + 1]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def n_rows(self) -> int:
        return self.n_tokens if self.positions == "all" else len(self.prompts)

    @property
    def width(self) -> int:
        """Numbers a Layer and row."""
        return _width(self.model, self.directions)

    @property
    def shards(self) -> list[tuple[int, int]]:
        return list(pairwise(self.cuts))

    @property
    def max_bytes(self) -> int:
        """Of all rows, as float32; compressed they take less."""
        return self.n_rows * len(self.layers) * self.width * 4


async def plan_harvest(request: HarvestRequest, models: Mapping[str, ServedModel], limits: Limits) -> HarvestPlan:
    """Raises ModelNotFound, HarvestUnsupported, InvalidRequest (Layers, directions and token ids that the model
    lacks), ContextLengthExceeded and InvalidRequest (more tokens or bytes than a harvest may have), in this order.
    """
    model = find_model(models, request.model)
    if not model.entry.activations:
        raise HarvestUnsupported(f"{request.model} cannot be harvested: it offers no Activations.", param="model")
    layers = _layers(request, model)
    _check_directions(request, model)
    prompts = await tokenise(model, request.prompts, request.add_special_tokens is not False)
    check_vocabulary(model, prompts, lambda index: f"prompts[{index}]")
    _check_context(request, model, prompts)
    n_tokens = sum(map(len, prompts))
    if n_tokens > limits.harvest_tokens:
        raise InvalidRequest(
            f"prompts has {n_tokens:,} tokens in all; a harvest reads at most {limits.harvest_tokens:,}.",
            param="prompts",
        )
    positions = request.positions or ALL
    row_bytes = len(layers) * _width(model, request.project_onto) * 4
    sizes = [row_bytes * (len(ids) if positions == ALL else 1) for ids in prompts]
    _check_bytes(sizes, limits)
    _check_captures(model, layers, prompts, limits)
    cuts = cut(sizes, request.shard_size or SHARD_PROMPTS, limits.harvest_shard_bytes)
    return HarvestPlan(model, prompts, layers, positions, request.project_onto, cuts)


def cut(sizes: list[int], most_prompts: int, most_bytes: int) -> list[int]:
    """Where shards begin, and the end. Each holds at most `most_prompts` prompts and `most_bytes` of rows; `sizes` are
    those of the prompts, none of them above `most_bytes`.
    """
    cuts, prompts, held = [0], 0, 0
    for index, size in enumerate(sizes):
        if prompts == most_prompts or held + size > most_bytes:
            cuts.append(index)
            prompts = held = 0
        prompts, held = prompts + 1, held + size
    return [*cuts, len(sizes)]


def _layers(request: HarvestRequest, model: ServedModel) -> list[int]:
    if request.layers == ALL:
        return list(range(model.layers))
    if request.layers is None:
        return sorted({model.layers * quarter // 4 for quarter in (1, 2, 3)})
    layers: list[int] = request.layers
    if layers[-1] >= model.layers:
        raise InvalidRequest(
            f"layers names the Layer {layers[-1]}; {request.model} has the Layers 0 to {model.layers - 1}.",
            param="layers",
        )
    return layers


def _check_directions(request: HarvestRequest, model: ServedModel) -> None:
    directions = request.project_onto
    if directions is not None and directions.shape[1] != model.hidden_size:
        raise InvalidRequest(
            f"project_onto has rows of {directions.shape[1]} numbers; the hidden size of {request.model} is "
            f"{model.hidden_size}.",
            param="project_onto",
        )


def _check_context(request: HarvestRequest, model: ServedModel, prompts: list[list[int]]) -> None:
    """The engine makes one token after each prompt, and throws it away: the context must have room for it."""
    most = model.max_model_len - 1
    for index, ids in enumerate(prompts):
        if len(ids) > most:
            raise ContextLengthExceeded(
                f"prompts[{index}] has {len(ids)} tokens; a harvest of {request.model} reads prompts of up to {most}.",
                param=f"prompts[{index}]",
            )


def _check_bytes(sizes: list[int], limits: Limits) -> None:
    total, longest = sum(sizes), max(sizes)
    if total > limits.harvest_bytes:
        raise InvalidRequest(
            f"The harvest would have {total:,} bytes of rows; at most {limits.harvest_bytes:,}. Ask for fewer Layers "
            "or prompts, or for projections.",
            param="prompts",
        )
    if longest > limits.harvest_shard_bytes:
        index = sizes.index(longest)
        raise InvalidRequest(
            f"prompts[{index}] would have {longest:,} bytes of rows; at most {limits.harvest_shard_bytes:,}. Ask for "
            "fewer Layers.",
            param=f"prompts[{index}]",
        )


def _check_captures(model: ServedModel, layers: list[int], prompts: list[list[int]], limits: Limits) -> None:
    """A prompt is read in one piece, whatever is kept of it."""
    token_bytes = model.capture_bytes(len(layers))
    for index, ids in enumerate(prompts):
        if len(ids) * token_bytes > limits.harvest_shard_bytes:
            raise InvalidRequest(
                f"prompts[{index}] has {len(ids) * token_bytes:,} bytes of Activations to be read at once; at most "
                f"{limits.harvest_shard_bytes:,}. Ask for fewer Layers.",
                param=f"prompts[{index}]",
            )


def _width(model: ServedModel, directions: np.ndarray | None) -> int:
    return model.hidden_size if directions is None else len(directions)
