"""How many replicas a model needs, from what its replicas say they are running."""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


def by_running_requests(ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Serve's rule, ongoing requests over the target of each replica, with the figure that our replicas report.

    A waking call through the handle (`total_num_requests`) counts as one, so that a model at zero gets its first
    replica. Serve applies the bounds and the delays of the configuration to what is returned.
    """
    reported = (ctx.aggregated_metrics or {}).get("running", {})
    running = sum(reported.values()) + float(ctx.total_num_requests)
    target = ctx.config.target_ongoing_requests if ctx.config is not None else 1
    return math.ceil(running / target), {}
