"""The tap: reads and steers the residual stream inside vLLM's V1 model runner, for the requests that ask and no others.

Once a step, before the forward pass, a `Step` is planned from the runner's own host arrays: which rows of the batch are
whose, and what each Layer must do. In the pass each block's hook does at most one addition of the two residual halves
into one buffer, for the whole batch, and at most one steering. After the pass each request's rows go to its sheet
(`sheet`), under the position and the token id that the model was really given. Rows that are computed twice (a
preempted request starts again) are written twice, to the same place.

Everything here runs in the engine core's process: nothing may be raised into vLLM, which would end the engine. A fault
ends what it touches: its sheet is removed, and the replica, which looks for every label before it passes a steered
token or a capture on, fails it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acs.serve_apps.inference.tap.requests import KEY, TappedRequest, Vectors
from acs.serve_apps.inference.tap.sheet import Sheets, give_up
from acs.serve_apps.inference.tap.steering import Output, SteeredLayer
from acs.serve_apps.inference.tap.step import Rows, Step, additions

log = logging.getLogger("vllm.acs.tap")
FAILED_KEPT = 1024  # failed requests remembered, for choices that had not begun; each is aborted at once


class Tap:
    """One for each worker. Of tensor-parallel ones, which all see the whole stream and must all steer it, the first
    alone delivers. None of those passes a block by: they run each together, and one that has lost a request would not
    agree with the others which.
    """

    def __init__(self, runner: Any, blocks: list[torch.nn.Module], *, rank: int = 0, ranks: int = 1) -> None:
        self.hidden = int(runner.model_config.get_hidden_size())
        self.dtype = str(runner.model_config.dtype).removeprefix("torch.")
        self.sheets = Sheets()
        self.vectors = Vectors(self.hidden, runner.device)
        self.requests: dict[str, TappedRequest] = {}
        self.blocks = blocks
        self._runner = runner
        self._delivers = rank == 0
        self.may_end_early = ranks == 1
        self.device: torch.device = runner.device
        self._buffer = torch.empty(0, dtype=runner.model_config.dtype, device=runner.device)
        self.itemsize: int = self._buffer.itemsize
        self._places: list[Any] = []  # whose rows `_steered_layers` is made for
        self._steered_layers: dict[int, SteeredLayer] = {}
        self._failed: deque[str] = deque(maxlen=FAILED_KEPT)  # groups
        self._step: Step | None = None
        self._scheduled = 0  # rows of the batch
        self._execute_model: Callable[..., Any] = runner.execute_model
        self._model_forward: Callable[..., Any] = runner._model_forward
        runner.execute_model = self._execute
        runner._model_forward = self._forward
        for layer, block in enumerate(blocks):
            block.forward = self._unless_above_all(block.forward)
            block.register_forward_hook(self._hook(layer))

    # -- what vLLM calls

    def _execute(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for request_id in scheduler_output.finished_req_ids:
            self._end(request_id)
        for new in scheduler_output.scheduled_new_reqs:
            extra = new.sampling_params.extra_args if new.sampling_params is not None else None
            if extra and KEY in extra:
                self._begin(new.req_id, extra[KEY])
        self._scheduled = scheduler_output.total_num_scheduled_tokens  # none in a dummy run: there is nothing to plan
        try:
            return self._execute_model(scheduler_output, *args, **kwargs)
        finally:
            self._scheduled = 0

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self._step = step = self._plan() if self.requests and self._scheduled else None
        if step is None:
            return self._model_forward(*args, **kwargs)
        try:
            output = self._model_forward(*args, **kwargs)
        finally:
            self._step = None
        if self._delivers:
            step.deliver(kwargs["positions"], kwargs["input_ids"])
        return output

    def _plan(self) -> Step | None:
        try:
            rows = self._rows_of_batch()
            return Step(self, rows, self._scheduled) if rows else None
        except Exception as error:
            self.fail(list(self.requests.values()), error)
            return None

    def _unless_above_all(self, forward: Callable[..., Output]) -> Callable[..., Output]:
        """A block that is passed by when nobody in the batch looks at what it makes."""

        def block(*args: Any, **kwargs: Any) -> Output:
            if self._step is not None and self._step.top_output is not None:
                return self._step.top_output
            return forward(*args, **kwargs)

        return block

    def _hook(self, layer: int) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: Any, output: Output) -> None:
            if self._step is not None:
                self._step.at(layer, output)

        return hook

    # -- requests

    def _begin(self, request_id: str, given: dict[str, Any]) -> None:
        self._end(request_id)  # an id that was aborted and comes again
        try:
            if given["group"] in self._failed:
                raise RuntimeError("another choice of the request has failed")
            request = TappedRequest.begin(request_id, given, self.sheets, self.vectors, self.hidden, self.dtype)
        except Exception as error:
            self._give_up(given, error)
            self._fail_groups({given["group"]}, error)
        else:
            self.requests[request_id] = request

    def _end(self, request_id: str) -> None:
        request = self.requests.pop(request_id, None)
        if request is not None:
            request.end(self.vectors)
            self._places = []

    def fail(self, touched: Iterable[TappedRequest], error: Exception) -> None:
        """These requests, and the other choices of each, which may have read what these have cached, are lost."""
        self._fail_groups({request.group for request in touched}, error)

    def _fail_groups(self, groups: set[str], error: Exception) -> None:
        log.error("The tap failed for %s", ", ".join(sorted(groups)), exc_info=error)
        self._failed.extend(groups.difference(self._failed))
        for request in [request for request in self.requests.values() if request.group in groups]:
            self._give_up(request.given, error)
            self._end(request.id)

    def _give_up(self, given: dict[str, Any], error: Exception) -> None:
        with contextlib.suppress(FileNotFoundError):  # the replica has ended the request already
            give_up(Path(given["sheet"]), error)

    def _rows_of_batch(self) -> list[Rows]:
        """A request that was preempted has none. The arrays are read as a whole: there may be hundreds of requests."""
        batch, places = self._runner.input_batch, self._runner.input_batch.req_id_to_index
        requests = [request for request in self.requests.values() if request.id in places]
        indices = np.array([places[request.id] for request in requests], np.int64)
        starts = self._runner.query_start_loc.np
        bounds = starts[indices].tolist(), starts[indices + 1].tolist()
        return list(map(Rows, requests, *bounds, batch.num_computed_tokens_cpu[indices].tolist()))

    def steered_layers(self, rows: list[Rows]) -> dict[int, SteeredLayer]:
        """What to add in this step. It stays the same while the same requests generate, which is most of the time."""
        steered = [row for row in rows if row.request.steering]
        places = [(row.request, row.start, row.stop) for row in steered]
        if places != self._places:
            self._steered_layers = {
                layer: SteeredLayer(rounds, self.device) for layer, rounds in additions(steered, self.fail).items()
            }
            self._places = places if all(row.request.lasting for row in steered) else []
        return self._steered_layers if steered else {}

    def buffer(self, rows: int, units: int) -> torch.Tensor:
        """[rows, units] in the model's dtype; the same memory in each step."""
        if self._buffer.numel() < rows * units:
            self._buffer = torch.empty(rows * units, dtype=self._buffer.dtype, device=self._buffer.device)
        return self._buffer[: rows * units].view(rows, units)
