"""The answer to `prompt_logprobs: -1`: near a gigabyte of JSON, sent row by row in bounded memory."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from acs.platform.completions.road import Run
from acs.serve_apps.api import http
from acs.serve_apps.api.gathered import Gathered, gather
from acs.serve_apps.api.hang_up import interrupting
from acs.serve_apps.api.render.completion import completion_of
from acs.serve_apps.api.render.vocabulary import VocabularyJson, likeliest


class WholeVocabularyAnswer(Response):
    """Waits for the engine first, so that a failure still has a status of its own; the rows are then rendered in a
    thread, one at a time, each when the client has taken the one before. Only a few such requests run at once, so a
    client that takes nothing for `stalled_s` is cut off by TimeoutError.
    """

    def __init__(self, request: Request, run: Run) -> None:
        self._request = request
        self._services = http.services_of(request)
        self._run = run
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with interrupting(self._request, self._run) as gone:
            async with self._services.whole_vocabulary:
                await self._send(await gather(self._run, _unchanged), send, gone)

    async def _send(self, gathered: Gathered, send: Send, gone: asyncio.Future[None]) -> None:
        gzip = http.accepts_gzip(self._request)
        headers = {"Content-Type": "application/json", "Vary": "Accept-Encoding", **http.clamped_header(self._run)}
        if gzip:
            headers["Content-Encoding"] = "gzip"
        await send({"type": "http.response.start", "status": 200, "headers": http.raw(headers)})
        packer = http.gzip_packer() if gzip else None
        parts = rendered_parts(gathered, int(time.time()), self._request.app.state.vocabulary_json)

        def next_part() -> bytes | None:
            part = next(parts, None)
            if part is None or packer is None:
                return part
            return packer.compress(part)  # type: ignore[no-any-return]

        upcoming = asyncio.ensure_future(asyncio.to_thread(next_part))
        try:
            while (part := await upcoming) is not None and not gone.done():
                upcoming = asyncio.ensure_future(asyncio.to_thread(next_part))  # while this one is on its way
                if part:
                    async with asyncio.timeout(self._services.limits.stalled_s):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            upcoming.cancel()
        if not gone.done():
            await send({"type": "http.response.body", "body": packer.flush() if packer else b"", "more_body": False})


async def _unchanged(gathered: Gathered) -> Gathered:
    return gathered


def rendered_parts(gathered: Gathered, created: int, tables: dict[str, VocabularyJson]) -> Iterator[bytes]:
    """The Completion's JSON with every whole-vocabulary row where it belongs. Runs in a thread."""
    plan = gathered.plan
    texts = plan.model.tokenizer.token_texts
    if plan.request.model not in tables:
        tables[plan.request.model] = VocabularyJson(texts)
    table = tables[plan.request.model]
    blocks = [_matrix(prompt.vocabulary, len(texts)) for prompt in gathered.prompts]
    if plan.request.echo and plan.request.logprobs is not None:
        for prompt, block, ids in zip(gathered.prompts, blocks, plan.generate.prompts, strict=True):
            if len(block):
                prompt.rows.append(likeliest(block, ids[1:], plan.request.logprobs))
    mark = secrets.token_hex(16)  # stands for the rows until the text around them is written
    completion = completion_of(gathered, created)
    for choice in completion["choices"]:
        choice["prompt_logprobs"] = mark
    around = orjson.dumps(completion).split(b'"%s"' % mark.encode())
    for index, before in enumerate(around[:-1]):
        number = index // plan.generate.n
        yield before + b"[null"
        for row, token_id in zip(blocks[number], plan.generate.prompts[number][1:], strict=True):
            yield b"," + table.row(row, token_id)
        yield b"]"
    yield around[-1]


def _matrix(blocks: list[bytes], vocabulary: int) -> np.ndarray:
    """float32 [positions, vocabulary]; none for a prompt of one token. Takes the blocks: held once."""
    joined = b"".join(blocks)
    blocks.clear()
    return np.frombuffer(joined, "<f4").reshape(-1, vocabulary)
