"""GET /v1/models: what may be asked for, and what each model can do."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from acs.platform.completions.served import ServedModel
from acs.platform.limits import Limits
from acs.serve_apps.api import http


async def list_models(request: Request) -> Response:
    services = http.services_of(request)
    await http.caller_of(request)
    data = [model_object(model, services.limits) for model in services.models.values()]
    return await http.json_answer(request, {"object": "list", "data": data})


def model_object(model: ServedModel, limits: Limits) -> dict[str, Any]:
    entry = model.entry
    return {
        "id": entry.id,
        "object": "model",
        "created": entry.created,
        "owned_by": entry.owned_by,
        "served_model_name": entry.served_model_name,
        "status": model.engine.status().status,
        "capabilities": {
            "max_model_len": model.max_model_len,
            "max_logprobs": limits.max_logprobs,
            "n_layers": model.layers,
            "hidden_size": model.hidden_size,
            "vocab_size": model.tokenizer.vocab_size,
            "logprobs": True,
            "prompt_logprobs": True,
            "full_vocab_max_prompt_tokens": limits.full_vocab_prompt_tokens,
            "activations": entry.activations,
            "steering": entry.activations,
            "harvest": entry.activations,
            "max_activation_bytes": limits.activation_bytes if entry.activations else 0,
        },
        "price": {
            "prompt_micro_usd_per_million": entry.price.prompt_micro_usd_per_million,
            "completion_micro_usd_per_million": entry.price.completion_micro_usd_per_million,
        },
        "description": entry.description,
    }
