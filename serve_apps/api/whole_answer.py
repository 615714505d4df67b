"""The bytes of a whole Completion, for whoever waits for it and for Jobs alike."""

from __future__ import annotations

import asyncio
import time

import orjson

from acs.platform.completions.road import Run
from acs.serve_apps.api.gathered import Gathered
from acs.serve_apps.api.render.completion import completion_of

RENDER_INLINE_ENTRIES = 2_000  # about 1 ms of rendering; larger answers are rendered beside the event loop


async def rendered(run: Run, gathered: Gathered) -> bytes:
    """Kept for whoever sends the request again, if it may be."""
    created = int(time.time())

    def render() -> bytes:
        return orjson.dumps(completion_of(gathered, created))

    body = await asyncio.to_thread(render) if gathered.entries > RENDER_INLINE_ENTRIES else render()
    await run.keep(body)
    return body
