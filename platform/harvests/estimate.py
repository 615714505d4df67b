"""What a harvest would cost, said before it is submitted."""

from __future__ import annotations

from typing import Any

from acs.platform.harvests.plan import HarvestPlan

# Of float32 that holds bfloat16: what split by bytes and compressed is left of real residuals, with the labels.
BFLOAT16_SHARE = 0.36
FLOAT32_SHARE = 0.86


def estimate_of(plan: HarvestPlan, tokens_per_s: float | None) -> dict[str, Any]:
    """`tokens_per_s`: of the model's last harvests; None: there was none yet."""
    narrow = plan.directions is None and plan.positions != "mean" and plan.model.activation_item_bytes == 2
    price = plan.model.entry.price
    return {
        "object": "harvest_estimate",
        "model": plan.model.entry.id,
        "n_prompts": len(plan.prompts),
        "n_tokens": plan.n_tokens,
        "n_rows": plan.n_rows,
        "layer_indices": plan.layers,
        "n_files": len(plan.shards) + 2,  # the manifest and the statistics
        "max_bytes": plan.max_bytes,
        "estimated_bytes": round(plan.max_bytes * (BFLOAT16_SHARE if narrow else FLOAT32_SHARE)),
        "hold_tokens": plan.n_tokens,
        "cost_pico_usd": price.cost_pico_usd(plan.n_tokens, 0),
        "estimated_s": None if not tokens_per_s else round(plan.n_tokens / tokens_per_s, 1),
    }
