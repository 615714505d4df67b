"""The worker extension (`worker_extension_cls`): our code in the process that runs the model.

The tap and steering will live here; today it only keeps whole-vocabulary rows unsorted (`vllm_adapters`).
"""

from __future__ import annotations

from acs.serve_apps.inference.vllm_adapters import install_in_worker

install_in_worker()


class WorkerExtension:
    """Mixed into vLLM's worker class; every attribute name begins with `acs_` so that none collides with its own."""
