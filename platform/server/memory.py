"""How much memory a server will take, roughly, before any of it is taken."""

from __future__ import annotations

from pathlib import Path

from acs.platform.catalogue import Catalogue, Model

# Without weights and KV cache. Ray, Serve's controller and proxies, the ledger, the views, an ingress, the runner of
# Jobs; then a replica: its own process and vLLM's two, or for canned answers only its own.
_BASE_BYTES = 1_670_000_000
_VLLM_REPLICA_BYTES = 1_600_000_000
_FAKE_REPLICA_BYTES = 200_000_000
_KV_CACHE_GIB = 4  # vLLM's own default on a CPU


def needed_bytes(catalogue: Catalogue, models_dir: Path, total_bytes: int) -> int:
    """For the replicas that start with the server. A model on a GPU keeps weights and cache there."""
    return _BASE_BYTES + sum(
        model.replicas.min * _replica_bytes(model, models_dir, total_bytes) for model in catalogue.values()
    )


def _replica_bytes(model: Model, models_dir: Path, total_bytes: int) -> int:
    if model.engine_class == "fake":
        return _FAKE_REPLICA_BYTES
    if model.resources.num_gpus > 0:
        return _VLLM_REPLICA_BYTES
    weights = sum(file.stat().st_size for file in model.checkpoint(models_dir).glob("*.safetensors"))
    cache = float(model.env.get("VLLM_CPU_KVCACHE_SPACE", _KV_CACHE_GIB)) * 1024**3
    # vLLM refuses to start on a CPU unless this share of all memory is free.
    refused_below = float(model.engine.get("gpu_memory_utilization", 0.92)) * total_bytes
    return round(max(_VLLM_REPLICA_BYTES + weights + cache, refused_below))
