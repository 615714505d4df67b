"""What one choice asks of vLLM's sampler."""

from __future__ import annotations

from typing import Any

from acs.platform.inference.contract import Generate

SEED_MODULUS = 2**63


def sampling_params(request: Generate, choice: int) -> Any:
    """vLLM's SamplingParams for choice `choice` of each prompt."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = request.sampling
    per_token = request.stream or request.logprobs is not None
    # Every choice of a prompt has the same prompt rows: the first one brings them for all.
    prompt_logprobs = request.prompt_logprobs if choice == 0 else None
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=None if sampling.seed is None else (sampling.seed + choice) % SEED_MODULUS,
        stop=sampling.stop,
        logit_bias=sampling.logit_bias,
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
        # What is cached is not computed, and only what is computed can be read.
        skip_reading_prefix_cache=True if request.capture else None,
        detokenize=not request.only_capture,
        output_kind=RequestOutputKind.DELTA if per_token else RequestOutputKind.FINAL_ONLY,
    )
