"""Reads the residual stream of a chunk of prompts: one request to the engine, tried again when that may help."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

from acs.platform.completions.charge import error_in
from acs.platform.completions.inbox import Inbox
from acs.platform.errors import InferenceError, InternalError, UpstreamDeadline
from acs.platform.inference.contract import Captured, Delta, Engine, Generate, Sampling

log = logging.getLogger("ray.serve")
CHUNK_TOKENS = 8192  # of one request: many, so that its prompts fill an engine's steps, few enough to be read again
CHUNK_BYTES = 64 * 2**20  # of what one request captures, unless a single prompt has more
PAUSES_S = (0.5, 2.0, 8.0, 30.0, 60.0)  # before each further try
DOWN_LOOKS, LOOK_S = 1800, 1.0  # while nobody serves the model a try waits besides: a large one takes minutes to load
DEADLINE_S = 3600.0  # of one request, most of which it may wait: it gives way to direct ones


def chunk_tokens(token_bytes: int) -> int:
    """Of one request. `token_bytes`: what is captured of one token."""
    return max(1, min(CHUNK_TOKENS, CHUNK_BYTES // token_bytes))


def chunks(lengths: Sequence[int], most_tokens: int = CHUNK_TOKENS) -> list[range]:
    """Prompts in their order, so many that a chunk has `most_tokens` at most; a longer prompt is a chunk by itself."""
    found: list[range] = []
    start = held = 0
    for index, length in enumerate(lengths):
        if index > start and held + length > most_tokens:
            found.append(range(start, index))
            start, held = index, 0
        held += length
    return [*found, range(start, len(lengths))]


async def read(
    engine: Engine, prompts: list[list[int]], layers: list[int], pauses_s: Sequence[float] = PAUSES_S
) -> list[Captured]:
    """The stream of each prompt at every position. Raises the contract's errors: those of the engine side only when
    they came again after every pause, since a harvest has time, and work behind it that must not be lost.
    """
    for pause_s in pauses_s:
        try:
            return await _read_once(engine, prompts, layers)
        except InferenceError as error:
            log.warning("Prompts of a harvest were not read and will be again: %s", error)
        await asyncio.sleep(pause_s)
        await _while_down(engine)
    return await _read_once(engine, prompts, layers)


async def _while_down(engine: Engine) -> None:
    for _ in range(DOWN_LOOKS):
        if engine.status().status != "down":
            return
        await asyncio.sleep(LOOK_S)


async def _read_once(engine: Engine, prompts: list[list[int]], layers: list[int]) -> list[Captured]:
    sampling = Sampling(max_tokens=1, temperature=0.0)  # the least that can be asked for
    own_id = f"hrv-{secrets.token_hex(8)}"
    request = Generate(own_id, prompts, 1, sampling, capture=layers, gives_way=True, only_capture=True)
    inbox = Inbox()
    engine.submit(request, inbox.put)
    try:
        async with asyncio.timeout(DEADLINE_S):
            found = await _gathered(inbox, len(prompts))
    except TimeoutError:
        raise UpstreamDeadline(f"{sum(map(len, prompts))} tokens were not read within {DEADLINE_S:g} s.") from None
    finally:
        engine.abort(request.request_id)  # which does nothing when it has ended
    return [_checked(found.get(index), ids, layers) for index, ids in enumerate(prompts)]


async def _gathered(inbox: Inbox, unfinished: int) -> dict[int, Captured]:
    """What was captured of each prompt, once all have ended."""
    found: dict[int, Captured] = {}
    while unfinished:
        for piece in await inbox.take():
            if (error := error_in(piece)) is not None:
                raise error
            if isinstance(piece, Captured):
                found[piece.index] = piece
            elif isinstance(piece, Delta) and piece.finish_reason is not None:
                unfinished -= 1
    return found


def _checked(piece: Captured | None, ids: list[int], layers: list[int]) -> Captured:
    """Never fewer rows than tokens, nor more: a wrong row beside a right label would look as good as any."""
    if piece is None or piece.shape[:2] != (len(layers), len(ids)):
        shape = None if piece is None else piece.shape
        raise InternalError(f"The engine captured {shape} of {len(layers)} Layers at {len(ids)} positions.")
    return piece
