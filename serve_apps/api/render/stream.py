"""A streamed Completion: the bytes of one Server-Sent Event a token, written without building objects for them."""

from __future__ import annotations

import orjson

from acs.platform.completions.plan import Plan
from acs.platform.inference.contract import Delta, Piece, PromptRows
from acs.serve_apps.api.gathered import PromptParts
from acs.serve_apps.api.render.completion import PromptShown, usage_of
from acs.serve_apps.api.render.logprobs import LogprobLists

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


class StreamRenderer:
    """Turns the Pieces of one request into events. Choices come interleaved, each with its index."""

    def __init__(self, plan: Plan, created: int) -> None:
        self._plan = plan
        # Only id, created and model vary between streams, and only index, text and the rest between events.
        model = plan.model.entry.served_model_name
        head = {"id": plan.id, "object": "text_completion", "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._prompts = [PromptParts() for _ in plan.generate.prompts]
        self._shown: dict[int, PromptShown] = {}
        self._lists: dict[int, LogprobLists] = {}
        self._begun: set[int] = set()  # choices whose first event has gone
        self._held: list[Delta] = []  # with echo and logprobs: until the prompt's own rows are here
        self._rows_due = {
            number
            for number, ids in enumerate(plan.generate.prompts)
            if plan.generate.prompt_logprobs is not None and len(ids) > 1
        }

    def events(self, piece: Piece) -> bytes:
        """The events that this Piece completes; often one, sometimes none."""
        if isinstance(piece, PromptRows):
            self._prompts[piece.prompt].rows.append(piece.rows)
            rows = sum(rows.count for rows in self._prompts[piece.prompt].rows)
            if rows == len(self._plan.generate.prompts[piece.prompt]) - 1:
                self._rows_due.discard(piece.prompt)
            held, self._held = self._held, []
            return b"".join(self.events(delta) for delta in held)
        assert isinstance(piece, Delta)
        if piece.index // self._plan.generate.n in self._rows_due:
            self._held.append(piece)
            return b""
        return self._event(piece)

    def usage(self, completion_tokens: int) -> bytes:
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage_of(self._plan, completion_tokens)) + b"}\n\n"

    def _event(self, delta: Delta) -> bytes:
        text = "".join(delta.texts)
        first = None
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            first = self._begin(delta.index)
            text = first.text + text
        logprobs = b"null"
        if self._plan.request.logprobs is not None:
            lists = self._lists[delta.index]
            if delta.logprobs is not None:
                lists.add(delta.logprobs, delta.texts)
            logprobs = orjson.dumps(lists.take())
        finish = b"null" if delta.finish_reason is None else b'"%s"' % delta.finish_reason.encode()
        parts = [
            self._head,
            b',"choices":[{"index":%d,"text":' % delta.index,
            orjson.dumps(text),
            b',"logprobs":',
            logprobs,
            b',"finish_reason":',
            finish,
        ]
        if self._plan.request.return_token_ids:
            parts += (b',"token_ids":', orjson.dumps(delta.token_ids))
            if first is not None:
                parts += (b',"prompt_token_ids":', orjson.dumps(first.ids))
        parts.append(b"}]}\n\n")
        return b"".join(parts)

    def _begin(self, index: int) -> PromptShown:
        number = index // self._plan.generate.n
        if number not in self._shown:  # once for all choices of the prompt
            self._shown[number] = PromptShown(self._plan, number, self._prompts[number])
        shown = self._shown[number]
        if self._plan.request.logprobs is not None:
            self._lists[index] = shown.lists()
        return shown
