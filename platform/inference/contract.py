"""The seam in front of the model: what an ingress asks of an Engine, and what comes back.

Nothing here knows HTTP, Ray or vLLM, and nothing a client sends reaches an Engine unchecked. The structs travel as
msgpack arrays (`acs.platform.inference.wire`): adding a field with a default at the end keeps both sides talking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class Sampling(msgspec.Struct, array_like=True, frozen=True):
    """How one choice is drawn. The values are those of the contract, already validated; None or 0 means off."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # of choice 0; choice i draws with (seed + i) mod 2**63
    stop: list[str] = []
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0


# No steered stream may hold a larger number: its square must stay within float32, or the norm after it makes NaN; and a
# NaN in the engine's cache outlives its request, and reaches whoever is given the same block next.
STEERED_MAX = 1e15


class Steering(msgspec.Struct, array_like=True, frozen=True):
    """One steering vector, checked: finite, of the model's hidden size, each Layer and position in range and once.

    values: little-endian float32 [layers, rows, hidden]; one row for every position, or one for each of `positions`
    (absolute, from 0).
    """

    layers: list[int]
    values: bytes
    scale: float = 1.0
    norm_match: bool = False
    positions: list[int] | None = None


class Generate(msgspec.Struct, array_like=True, frozen=True):
    """Continue each prompt `n` times. Choice i of prompt p has the index p * n + i.

    `logprobs`: k likeliest tokens at each generated position beside the sampled one; None: no rows at all.
    `prompt_logprobs`: the same for prompt positions; -1: the whole vocabulary, as `FullVocabularyRows`.
    `stream`: a Delta for every token as it comes; otherwise one Delta a choice, when it has ended.
    `capture`: Layers, ascending, whose residual stream comes as one Captured for each choice; never with `stream`.
    `steering`: added to every choice's stream, in this order.
    `gives_way`: nobody waits for it: while other requests run it gets little of the engine.
    `only_capture`: its tokens are of no use, so that what lies above its last captured Layer need not be computed.
    """

    request_id: str  # ours, unique: a client's X-Request-Id is a label and may repeat
    prompts: list[list[int]]
    n: int
    sampling: Sampling
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = False
    capture: list[int] = []
    steering: list[Steering] = []
    gives_way: bool = False
    only_capture: bool = False


class LogprobRows(msgspec.Struct, array_like=True, frozen=True):
    """Log probabilities at `rows` consecutive positions, as raw little-endian arrays.

    ids: int32 [rows, width], logprobs: float32 [rows, width], ranks: int32 [rows]. Column 0 is the token that stands
    at the position, with its true rank (1 = likeliest) in `ranks`; columns 1… are the likeliest, in order.
    """

    width: int
    ids: bytes
    logprobs: bytes
    ranks: bytes

    @property
    def count(self) -> int:
        return len(self.ranks) // 4


class Delta(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Tokens of one choice. `texts[j]` is the text that token j added to the answer; it is empty while a character,
    or what may become a stop string, is incomplete. A whole answer without logprobs has one text for all its tokens.

    finish_reason: "length", "stop", "abort" (the request was aborted: what it had generated until then), or None.
    cached_tokens: of the prompt, that the engine had read before; known in the choice's last Delta.
    """

    index: int
    token_ids: list[int]
    texts: list[str]
    logprobs: LogprobRows | None = None
    finish_reason: str | None = None
    cached_tokens: int = 0


class PromptRows(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Log probabilities at the prompt's positions 1… (nothing stands before position 0)."""

    prompt: int
    rows: LogprobRows


class FullVocabularyRows(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The whole distribution at prompt positions first, first + 1, …: float32 [rows, vocabulary], by token id."""

    prompt: int
    first: int
    logprobs: bytes


class Captured(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The residual stream of one choice, sent before its last Delta: the output of each wanted decoder block, Layers
    ascending, at every position that went through the model (prompt and generated tokens but the last).

    shape: [layers, positions, hidden]; data: little-endian, in `dtype`, the model's own ("float32" or "bfloat16").
    """

    index: int
    shape: tuple[int, int, int]
    dtype: str
    data: memoryview  # decoded without a copy


class Failed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The request has ended by a fault; nothing follows. `code` is one of the contract's."""

    code: str
    message: str


Piece = Delta | PromptRows | FullVocabularyRows | Captured | Failed
Sink = Callable[[Piece], None]


class EngineStatus(msgspec.Struct, array_like=True, frozen=True):
    """`live`: takes requests. `cold`: no replica, one will be started for a request. `down`: should run, does not."""

    status: str
    running: int = 0  # choices that the engines count as unfinished


class Engine(Protocol):
    """One model, wherever it runs. Calls come from one event loop and never block it."""

    def submit(self, request: Generate, sink: Sink) -> None:
        """Start the request. `sink` is called on the loop, in order, with every Piece: each choice ends by exactly one
        Delta with a finish_reason, or the whole request by one Failed, after which nothing is sent.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request at once. Its unfinished choices end with "abort"; an unknown or ended id does nothing."""
        ...

    def status(self) -> EngineStatus: ...
