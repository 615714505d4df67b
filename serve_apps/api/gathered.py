"""What a whole answer is made of: the Pieces of one request, kept until the engine has ended it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from acs.platform.completions.plan import Plan
from acs.platform.completions.road import Run
from acs.platform.inference.contract import Captured, Delta, FullVocabularyRows, LogprobRows, Piece, PromptRows

T = TypeVar("T")


@dataclass(slots=True)
class ChoiceParts:
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rows: list[LogprobRows] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    captured: Captured | None = None


@dataclass(slots=True)
class PromptParts:
    rows: list[LogprobRows] = field(default_factory=list)
    vocabulary: list[bytes] = field(default_factory=list)  # float32 [positions, vocabulary], in order of position


class Gathered:
    """The Pieces of one request, by choice and by prompt."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.choices = [ChoiceParts() for _ in range(plan.choices)]
        self.prompts = [PromptParts() for _ in plan.generate.prompts]

    def add(self, piece: Piece) -> None:
        if isinstance(piece, Delta):
            choice = self.choices[piece.index]
            choice.token_ids += piece.token_ids
            choice.texts += piece.texts
            if piece.logprobs is not None:
                choice.rows.append(piece.logprobs)
            choice.finish_reason, choice.cached_tokens = piece.finish_reason, piece.cached_tokens
        elif isinstance(piece, Captured):
            self.choices[piece.index].captured = piece
        elif isinstance(piece, PromptRows):
            self.prompts[piece.prompt].rows.append(piece.rows)
        elif isinstance(piece, FullVocabularyRows):
            self.prompts[piece.prompt].vocabulary.append(piece.logprobs)

    @property
    def entries(self) -> int:
        """How many numbers and prompt tokens the answer prints: large ones are rendered beside the loop."""
        generated = sum(len(rows.logprobs) for choice in self.choices for rows in choice.rows)
        of_prompts = sum(len(rows.logprobs) for prompt in self.prompts for rows in prompt.rows)
        shows_prompt = self.plan.request.echo or self.plan.request.return_token_ids
        prompt_tokens = self.plan.prompt_tokens if shows_prompt else 0
        captured = sum(len(choice.captured.data) for choice in self.choices if choice.captured is not None)
        return captured // 16 + generated // 4 + (of_prompts // 4 + prompt_tokens) * self.plan.generate.n


async def gather(run: Run, finish: Callable[[Gathered], Awaitable[T]]) -> T:
    """Run it to its end, make the answer of it by `finish`, then charge it: what cannot be answered is not charged.

    Raises the contract's errors, Replayed, and ClientGone when the client hangs up first.
    """
    async with run:
        gathered = Gathered(run.plan)
        while run.unfinished:
            for piece in await run.ready():
                gathered.add(piece)
        answer = await finish(gathered)
    await run.charged()
    return answer
