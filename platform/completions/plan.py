"""From a request of sound shape to what the engine is asked: the model looked up, the prompts as tokens, the quote."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from acs.platform.completions.body import shown
from acs.platform.completions.plan_activations import plan_activations
from acs.platform.completions.request import CompletionRequest
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from acs.platform.inference.contract import Generate, Sampling, Steering
from acs.platform.limits import Limits

T = TypeVar("T")
TOKENISE_INLINE_CHARACTERS = 20_000  # about 5 ms; longer texts are tokenised beside the event loop


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that can be answered: what the client asked, whom it goes to, and what the engine is told."""

    request: CompletionRequest
    model: ServedModel
    generate: Generate

    @property
    def id(self) -> str:
        """The Completion's id, and the engine's: a client's X-Request-Id is a label that may repeat."""
        return self.generate.request_id

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.generate.prompts))

    @property
    def choices(self) -> int:
        return len(self.generate.prompts) * self.generate.n

    @property
    def max_tokens(self) -> int:
        """Of one choice."""
        return self.generate.sampling.max_tokens

    def lowered(self, max_tokens: int) -> Plan:
        """The same with fewer tokens a choice: what the budget leaves."""
        sampling = msgspec.structs.replace(self.generate.sampling, max_tokens=max_tokens)
        return replace(self, generate=msgspec.structs.replace(self.generate, sampling=sampling))

    @property
    def whole_vocabulary(self) -> bool:
        return self.generate.prompt_logprobs == -1


def find_model(models: Mapping[str, ServedModel], model_id: str) -> ServedModel:
    """Raises ModelNotFound."""
    if model_id not in models:
        raise ModelNotFound(
            f"The model {model_id[:100]!r} does not exist. GET /v1/models lists the models.", param="model"
        )
    return models[model_id]


async def plan_completion(request: CompletionRequest, models: Mapping[str, ServedModel], limits: Limits) -> Plan:
    """Raises ModelNotFound, InvalidRequest (ids beyond the vocabulary, the whole-vocabulary limit, Layers that
    the model lacks, tensors of a wrong or too large size) and ContextLengthExceeded, in this order.
    """
    model = find_model(models, request.model)
    prompts = await tokenise(model, request.prompts, request.add_special_tokens is not False)
    _check_ids(request, model, prompts)
    prompt_tokens = sum(map(len, prompts))
    if request.prompt_logprobs == -1 and prompt_tokens * request.choices_per_prompt > limits.full_vocab_prompt_tokens:
        raise InvalidRequest(
            f"prompt_logprobs -1 asks for the whole vocabulary at {prompt_tokens} prompt tokens × n "
            f"{request.choices_per_prompt}; at most {limits.full_vocab_prompt_tokens} in all.",
            param="prompt_logprobs",
        )
    capture, steering = plan_activations(request, model, prompts, limits)
    max_tokens = _max_tokens(request, model, prompts, limits)
    return Plan(request, model, _generate(request, prompts, max_tokens, capture, steering))


async def tokenise(model: ServedModel, prompts: list[str] | list[list[int]], special: bool) -> list[list[int]]:
    """The token ids of each prompt; prompts that are ids already come back as they are.

    `special`: whether the tokenizer may put its own tokens around a text.
    """

    def encode_all() -> list[list[int]]:
        return [
            model.tokenizer.encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    if sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) > TOKENISE_INLINE_CHARACTERS:
        return await asyncio.to_thread(encode_all)
    return encode_all()


def check_vocabulary(model: ServedModel, prompts: list[list[int]], where: Callable[[int], str]) -> None:
    """`where`: the path of prompt i in its request. Raises InvalidRequest."""
    vocabulary = model.tokenizer.vocab_size
    for index, ids in enumerate(prompts):
        if not ids:
            raise InvalidRequest(f"{where(index)} has no tokens.", param=where(index))
        if max(ids) >= vocabulary:
            raise InvalidRequest(
                f"{where(index)} holds the token id {shown(max(ids))}; the vocabulary of {model.entry.id} ends at "
                f"{vocabulary - 1}.",
                param=where(index),
            )


def _check_ids(request: CompletionRequest, model: ServedModel, prompts: list[list[int]]) -> None:
    check_vocabulary(model, prompts, lambda index: "prompt" if len(prompts) == 1 else f"prompt[{index}]")
    vocabulary = model.tokenizer.vocab_size
    beyond = [token_id for token_id in request.logit_bias or () if token_id >= vocabulary]
    if beyond:
        raise InvalidRequest(
            f"logit_bias names the token id {beyond[0]}; the vocabulary of {request.model} ends at {vocabulary - 1}.",
            param="logit_bias",
        )


def _max_tokens(request: CompletionRequest, model: ServedModel, prompts: list[list[int]], limits: Limits) -> int:
    longest = max(map(len, prompts))
    context = model.max_model_len
    if request.max_tokens is None:
        left = context - longest
        if left < 1:
            raise ContextLengthExceeded(
                f"The prompt has {longest} tokens; the context of {request.model} is {context} tokens, and a "
                "continuation needs at least one.",
                param="prompt",
            )
        max_tokens = left if request.stream else min(left, limits.max_tokens_whole)
        if request.min_tokens and request.min_tokens > max_tokens:
            raise ContextLengthExceeded(
                f"min_tokens is {request.min_tokens}; after the prompt {max_tokens} tokens are left.",
                param="min_tokens",
            )
        return max_tokens
    if longest + request.max_tokens > context:
        raise ContextLengthExceeded(
            f"The prompt has {longest} tokens and max_tokens is {request.max_tokens}, {longest + request.max_tokens} "
            f"in all; the context of {request.model} is {context} tokens.",
            param="max_tokens" if longest < context else "prompt",
        )
    return request.max_tokens


def _generate(
    request: CompletionRequest, prompts: list[list[int]], max_tokens: int, capture: list[int], steering: list[Steering]
) -> Generate:
    def given(value: T | None, default: T) -> T:
        return default if value is None else value

    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=given(request.temperature, 1.0),
        top_p=given(request.top_p, 1.0),
        top_k=max(0, given(request.top_k, 0)),
        min_p=given(request.min_p, 0.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        seed=request.seed,
        stop=request.stop or [],
        logit_bias=request.logit_bias or None,
        ignore_eos=bool(request.ignore_eos),
        min_tokens=request.min_tokens or 0,
    )
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None and prompt_logprobs != -1:
        prompt_logprobs = max(request.logprobs, -1 if prompt_logprobs is None else prompt_logprobs)
    return Generate(
        request_id=f"cmpl-{secrets.token_hex(8)}",
        prompts=prompts,
        n=request.choices_per_prompt,
        sampling=sampling,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
        stream=bool(request.stream),
        capture=capture,
        steering=steering,
    )
