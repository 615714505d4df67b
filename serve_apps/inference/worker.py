"""The worker extension (`worker_extension_cls`): our code in the process that runs the model.

Importing it keeps whole-vocabulary rows unsorted (`vllm_adapters`); `acs_install_tap` opens the tap.
"""

from __future__ import annotations

from typing import Any

import torch

from acs.serve_apps.inference.tap.probe import Probe
from acs.serve_apps.inference.tap.tap import Tap
from acs.serve_apps.inference.vllm_adapters import install_in_worker

install_in_worker()


class WorkerExtension:
    """Mixed into vLLM's worker class; every attribute name begins with `acs_` so that none collides with its own."""

    acs_tap: Tap
    acs_probe: Probe

    def acs_install_tap(self) -> dict[str, Any]:
        """Returns what the self-test compares: how many blocks were found, their width and dtype."""
        from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

        runner = self.model_runner  # type: ignore[attr-defined]
        blocks = decoder_blocks(runner.get_model(), runner.model_config.hf_text_config.num_hidden_layers)
        rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        self.acs_tap = Tap(runner, blocks, rank=rank, ranks=ranks)
        return {"layers": len(blocks), "hidden": self.acs_tap.hidden, "dtype": self.acs_tap.dtype}

    def acs_start_probe(self) -> None:
        tap, model = self.acs_tap, self.model_runner.get_model()  # type: ignore[attr-defined]
        self.acs_probe = Probe(model, tap.blocks, tap.hidden)

    def acs_take_probe(self) -> list[bytes]:
        return self.acs_probe.take()


def decoder_blocks(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """The model's list of `count` blocks, whatever its architecture calls it; empty when it has none."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return list(lists[0]) if lists else []
