"""A whole Completion from what was gathered of it, key for key in the contract's order."""

from __future__ import annotations

from typing import Any

from acs import tensors
from acs.platform.completions.plan import Plan
from acs.serve_apps.api.gathered import ChoiceParts, Gathered, PromptParts
from acs.serve_apps.api.render.logprobs import LogprobLists, prompt_logprobs_of


def completion_of(gathered: Gathered, created: int) -> dict[str, Any]:
    plan = gathered.plan
    shown = [PromptShown(plan, number, gathered.prompts[number]) for number in range(len(gathered.prompts))]
    answer = {
        "id": plan.id,
        "object": "text_completion",
        "created": created,
        "model": plan.model.entry.served_model_name,
        "choices": [
            _choice(plan, index, choice, shown[index // plan.generate.n])
            for index, choice in enumerate(gathered.choices)
        ],
        "usage": usage_of(plan, sum(len(choice.token_ids) for choice in gathered.choices)),
    }
    if plan.generate.capture and plan.choices == 1:
        answer["activations"] = _activations(gathered.choices[0])
    return answer


def _activations(choice: ChoiceParts) -> dict[str, Any]:
    captured = choice.captured
    assert captured is not None  # the engine sends it before the last Delta
    return {"residual_stream": tensors.envelope_of(captured.data, captured.dtype, captured.shape)}


def usage_of(plan: Plan, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": plan.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": plan.prompt_tokens + completion_tokens,
    }


class PromptShown:
    """What each choice of a prompt shows of the prompt itself: echoed text and its tokens, its log probabilities."""

    def __init__(self, plan: Plan, number: int, prompt: PromptParts) -> None:
        request, self.ids = plan.request, plan.generate.prompts[number]
        self._texts = plan.model.tokenizer.token_texts
        self._rows = prompt.rows
        self._keep = request.logprobs
        self.text = ""
        self.pieces: list[str] = []
        if request.echo:
            given = request.prompts[number]
            self.pieces = plan.model.tokenizer.pieces(self.ids, special=not isinstance(given, str))
            self.text = given if isinstance(given, str) else "".join(self.pieces)
        self.prompt_logprobs: list[Any] | None = None
        if request.prompt_logprobs is not None and request.prompt_logprobs >= 0:
            self.prompt_logprobs = prompt_logprobs_of(prompt.rows, self._texts, request.prompt_logprobs)

    def lists(self) -> LogprobLists:
        """Lists for one choice; with echo they begin with the prompt's tokens."""
        lists = LogprobLists(self._texts)
        if not self.pieces or self._keep is None:
            return lists
        lists.add_first(self.ids[0], self.pieces[0])
        texts = iter(self.pieces[1:])
        for rows in self._rows:
            lists.add(rows, [next(texts) for _ in range(rows.count)], self._keep)
        return lists.after(len(self.text))


def _choice(plan: Plan, index: int, choice: ChoiceParts, prompt: PromptShown) -> dict[str, Any]:
    logprobs = None
    if plan.request.logprobs is not None:
        lists = prompt.lists()
        texts = iter(choice.texts)
        for rows in choice.rows:
            lists.add(rows, [next(texts) for _ in range(rows.count)])
        logprobs = lists.take()
    answer = {
        "index": index,
        "text": prompt.text + "".join(choice.texts),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "prompt_logprobs": prompt.prompt_logprobs,
    }
    if plan.request.return_token_ids:
        answer["token_ids"] = choice.token_ids
        answer["prompt_token_ids"] = prompt.ids
    if plan.generate.capture and plan.choices > 1:
        answer["activations"] = _activations(choice)
    return answer
