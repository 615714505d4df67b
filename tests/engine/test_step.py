"""The tap over a runner and blocks that are made up: every row's values are known beforehand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from acs.serve_apps.inference.tap.exchange import Exchange
from acs.serve_apps.inference.tap.requests import KEY
from acs.serve_apps.inference.tap.sheet import Incomplete, Layout, Sheet
from acs.serve_apps.inference.tap.tap import Tap

HIDDEN, LAYERS = 8, 3


class Block(torch.nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream grows by 1 in each block."""
        return first + 1, second.clone()


class World:
    """A runner whose stream begins, at each row, with the token's id in one half and its position in the other."""

    def __init__(self, exchange: Exchange, ranks: int = 1) -> None:
        self.exchange = exchange
        self.skipped: set[int] = set()  # blocks that the pass goes by, as a compiled graph would
        self.blocks = [Block() for _ in range(LAYERS)]
        config = SimpleNamespace(get_hidden_size=lambda: HIDDEN, dtype=torch.float32)
        self.runner: Any = SimpleNamespace(device=torch.device("cpu"), model_config=config)
        self.runner._model_forward = self._model
        self.runner.execute_model = self._execute
        self.tap = Tap(self.runner, self.blocks, ranks=ranks)
        self.out: torch.Tensor
        self._new: list[Any] = []

    def begin(
        self, name: str, layers: list[int], capacity: int = 20, steering: float | None = None, **more: Any
    ) -> Sheet:
        sheet = self.exchange.sheet(Layout(len(layers), HIDDEN, "float32"), capacity)
        vectors = []
        if steering is not None:
            values = np.full((1, more.get("rows", 1), HIDDEN), steering, "<f4")
            vectors = [
                {"file": str(self.exchange.share(values.tobytes())), "layers": [1], "rows": values.shape[1]}
                | {"scale": 1.0, "norm_match": False, "positions": more.get("positions")}
            ]
        given = {
            "group": name,
            "sheet": str(sheet.path),
            "records": [0, capacity],
            "again": False,
            "layers": layers,
            "top": more.get("top"),
            "steering": vectors,
        }
        self._new.append(SimpleNamespace(req_id=name, sampling_params=SimpleNamespace(extra_args={KEY: given})))
        return sheet

    def step(self, *batch: tuple[str, int, list[int]], ended: tuple[str, ...] = ()) -> torch.Tensor:
        """One pass over (request, first position, token ids); the stream after the last block, [rows, hidden]."""
        counts = [len(ids) for _, _, ids in batch]
        self.runner.input_batch = SimpleNamespace(
            req_id_to_index={name: index for index, (name, _, _) in enumerate(batch)},
            num_computed_tokens_cpu=np.array([position for _, position, _ in batch], np.int32),
        )
        self.runner.query_start_loc = SimpleNamespace(np=np.cumsum([0, *counts], dtype=np.int32))
        self._ids = torch.tensor([token for _, _, ids in batch for token in ids], dtype=torch.int32)
        self._positions = torch.tensor([position + i for _, position, ids in batch for i in range(len(ids))])
        new, self._new = self._new, []
        output = {"scheduled_new_reqs": new, "finished_req_ids": ended, "total_num_scheduled_tokens": sum(counts)}
        self.runner.execute_model(SimpleNamespace(**output))
        return self.out

    def _execute(self, _scheduler_output: Any) -> None:
        self.runner._model_forward(positions=self._positions, input_ids=self._ids)

    def _model(self, *, positions: torch.Tensor, input_ids: torch.Tensor) -> None:
        halves = (input_ids.float()[:, None].repeat(1, HIDDEN), positions.float()[:, None].repeat(1, HIDDEN))
        for layer, block in enumerate(self.blocks):
            halves = block(*halves) if layer not in self.skipped else block.forward(*halves)
        self.out = halves[0] + halves[1]


@pytest.fixture
def world(tmp_path):
    exchange = Exchange(tmp_path)
    yield World(exchange)
    exchange.close()


def read(sheet: Sheet, ids: list[int]) -> np.ndarray:
    """[layers, positions], of which every dimension has the same value."""
    values = np.frombuffer(sheet.read(ids), "<f4").reshape(sheet.layout.layers, len(ids), HIDDEN)
    assert (values == values[..., :1]).all()
    return values[..., 0]


def stream(ids: list[int], layer: int) -> list[float]:
    return [token + position + layer + 1 for position, token in enumerate(ids)]


def test_requests_that_want_different_layers_share_a_pass(world):
    one, two, three = world.begin("one", [0, 2]), world.begin("two", [1]), world.begin("three", [0, 1, 2])
    world.step(("two", 0, [7, 8]), ("plain", 0, [1]), ("three", 0, [5, 5, 5]), ("one", 0, [9]))
    world.step(("one", 1, [4]), ("three", 3, [6]))
    assert read(one, [9, 4]).tolist() == [stream([9, 4], 0), stream([9, 4], 2)]
    assert read(two, [7, 8]).tolist() == [stream([7, 8], 1)]
    assert read(three, [5, 5, 5, 6]).tolist() == [stream([5, 5, 5, 6], layer) for layer in range(3)]


def test_steps_may_end_beyond_what_the_sheet_holds(world):
    sheet = world.begin("one", [1], capacity=2)
    world.step(("one", 0, [5, 6, 7]))
    world.step(("one", 3, [8]))
    assert read(sheet, [5, 6]).tolist() == [stream([5, 6], 1)]


def test_a_request_that_is_computed_again_has_its_last_rows(world):
    sheet = world.begin("one", [1])
    world.step(("one", 0, [5, 6]))
    world.step(("other", 0, [1]))
    world.step(("one", 0, [5, 6, 7]))
    assert read(sheet, [5, 6, 7]).tolist() == [stream([5, 6, 7], 1)]


def test_steering_follows_its_request_through_batches_that_change(world):
    world.begin("one", [], steering=10.0)
    world.begin("two", [], steering=100.0)
    steered = [world.step(("one", 0, [0]), ("two", 0, [0]), ("plain", 0, [0]))]
    steered.append(world.step(("one", 0, [0]), ("two", 0, [0]), ("plain", 0, [0])))  # the plan of the step before
    steered.append(world.step(("plain", 0, [0]), ("two", 0, [0]), ("one", 0, [0])))
    steered.append(world.step(("two", 0, [0, 0]), ("plain", 0, [0]), ended=("one",)))
    assert [(out[:, 0] - LAYERS).tolist() for out in steered] == [
        [10, 100, 0],
        [10, 100, 0],
        [0, 100, 10],
        [100, 101, 0],
    ]


def test_steering_at_positions_comes_and_goes_with_them(world):
    world.begin("one", [], steering=10.0, rows=2, positions=[2, 4])
    added = [(world.step(("one", position, [0]))[0, 0] - LAYERS - position).item() for position in range(6)]
    assert added == [0, 0, 10, 0, 10, 0]


def test_a_pass_that_goes_by_a_wanted_layer_labels_nothing(world):
    captured, steered = world.begin("one", [0, 2]), world.begin("two", [], steering=10.0)
    untouched = world.begin("three", [0])
    world.step(("three", 0, [5]), ("two", 0, [5]))
    steered.check(0, [5])  # it is mapped already when the worker removes it
    world.skipped = {1, 2}
    world.step(("one", 0, [5]), ("two", 1, [5]))
    for sheet, position in ((captured, 0), (steered, 1)):
        with pytest.raises(Incomplete, match="given the request up"):
            sheet.check(position, [5])
    untouched.check(0, [5])


def test_no_block_is_run_above_the_last_layer_of_requests_that_only_capture(world):
    low, high = world.begin("low", [0], top=0), world.begin("high", [0, 1], top=1)
    out = world.step(("low", 0, [50]), ("high", 0, [60, 61]))
    assert out[:, 0].tolist() == [50 + 2, 60 + 2, 61 + 1 + 2], "two blocks of three have added their 1"
    assert read(low, [50])[0].tolist() == stream([50], 0)
    for layer in (0, 1):
        assert read(high, [60, 61])[layer].tolist() == stream([60, 61], layer)


def test_all_blocks_are_run_by_workers_that_share_each_of_them(tmp_path):
    """One that has lost a request would wait for ever for the others, who pass its blocks by."""
    exchange = Exchange(tmp_path)
    world = World(exchange, ranks=2)
    sheet = world.begin("low", [0], top=0)
    assert world.step(("low", 0, [50]))[:, 0].tolist() == [50 + LAYERS]
    assert read(sheet, [50])[0].tolist() == stream([50], 0)
    exchange.close()


@pytest.mark.parametrize("tapped", [False, True])
def test_all_blocks_are_run_when_anybody_in_the_batch_wants_tokens(world, tapped):
    world.begin("low", [0], top=0)
    if tapped:
        world.begin("other", [0])
    out = world.step(("low", 0, [50]), ("other", 0, [60]))
    assert out[:, 0].tolist() == [50 + LAYERS, 60 + LAYERS]
    assert world.step(("low", 1, [51])).tolist() == [[51 + 1 + 1] * HIDDEN], "by itself again it passes one"


def test_a_request_that_has_ended_is_forgotten(world):
    world.begin("one", [1], steering=1.0)
    world.step(("one", 0, [5]))
    assert (len(world.tap.requests), len(world.tap.vectors)) == (1, 1)
    world.step(("plain", 0, [5]), ended=("one",))
    assert (len(world.tap.requests), len(world.tap.vectors)) == (0, 0)
