"""POST /tokenize, POST /detokenize, GET /tokenizer_info: what evaluation harnesses ask of a vLLM server."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import FailFast, Field
from starlette.requests import Request
from starlette.responses import Response

from acs.platform.completions.body import Body, parse_body, shown
from acs.platform.completions.plan import find_model, tokenise
from acs.platform.completions.served import ServedModel
from acs.platform.errors import InvalidRequest
from acs.serve_apps.api import http

TokenId = Annotated[int, Field(ge=0)]
DECODE_INLINE_TOKENS = 10_000  # about 1 ms; more are decoded beside the event loop


class TokenizeRequest(Body):
    model: str = Field(description="An id of GET /v1/models.", examples=["smollm2-135m"])
    prompt: str = Field(description="The text.", examples=["The sky is"])
    add_special_tokens: bool | None = Field(None, description="Default true: the tokenizer may add its first token.")
    return_token_strs: bool | None = Field(None, description="Add each token's own text.")


class DetokenizeRequest(Body):
    model: str = Field(description="An id of GET /v1/models.", examples=["smollm2-135m"])
    tokens: Annotated[list[TokenId], FailFast()] = Field(description="Token ids.", examples=[[504, 6376, 314]])


async def tokenize(request: Request) -> Response:
    _, wanted = await http.admit(request, lambda body: parse_body(TokenizeRequest, body))
    model = find_model(http.services_of(request).models, wanted.model)
    (ids,) = await tokenise(model, [wanted.prompt], wanted.add_special_tokens is not False)
    texts = model.tokenizer.token_texts
    answer = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
        "token_strs": [texts[token_id] for token_id in ids] if wanted.return_token_strs else None,
    }
    return await http.json_answer(request, answer)


async def detokenize(request: Request) -> Response:
    _, wanted = await http.admit(request, lambda body: parse_body(DetokenizeRequest, body))
    model = find_model(http.services_of(request).models, wanted.model)
    beyond = [token_id for token_id in wanted.tokens if token_id >= model.tokenizer.vocab_size]
    if beyond:
        last = model.tokenizer.vocab_size - 1
        raise InvalidRequest(f"tokens holds the id {shown(beyond[0])}; the vocabulary ends at {last}.", param="tokens")
    if len(wanted.tokens) > DECODE_INLINE_TOKENS:
        text = await asyncio.to_thread(model.tokenizer.decode, wanted.tokens)
    else:
        text = model.tokenizer.decode(wanted.tokens)
    return await http.json_answer(request, {"prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """`?model=` chooses; without it the first of the catalogue answers."""
    services = http.services_of(request)
    await http.caller_of(request)
    wanted = request.query_params.get("model")
    model: ServedModel = next(iter(services.models.values())) if wanted is None else find_model(services.models, wanted)
    return await http.json_answer(request, {"tokenizer_class": "PreTrainedTokenizerFast", **model.tokenizer.info()})
