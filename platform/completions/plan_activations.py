"""What a request asks of the model's inside, judged against the model it goes to."""

from __future__ import annotations

from acs.platform.completions.request import CompletionRequest
from acs.platform.completions.served import ServedModel
from acs.platform.errors import InvalidRequest
from acs.platform.inference.contract import Steering
from acs.platform.limits import Limits


def plan_activations(
    request: CompletionRequest, model: ServedModel, prompts: list[list[int]], limits: Limits
) -> tuple[list[int], list[Steering]]:
    """The Layers to capture, and the vectors to add, those of scale 0 left out. Raises InvalidRequest."""
    vectors = request.apply_steering_vectors or []
    for field, asked in (
        ("output_residual_stream", request.output_residual_stream),
        ("apply_steering_vectors", vectors),
    ):
        if asked and not model.entry.activations:
            raise InvalidRequest(f"{field}: {request.model} offers neither Activations nor steering.", param=field)
    capture = _captured_layers(request, model)
    if capture:
        _check_size(request, model, prompts, capture, limits)
    for number, vector in enumerate(vectors):
        where = f"apply_steering_vectors[{number}]"
        _check_layers(f"{where}.layer_indices", vector.layer_indices, request, model)
        hidden = vector.activations.shape[-1]
        if hidden != model.hidden_size:
            raise InvalidRequest(
                f"{where}.activations has rows of {hidden} numbers; the hidden size of {request.model} is "
                f"{model.hidden_size}.",
                param=f"{where}.activations",
            )
    return capture, [steering for vector in vectors if (steering := vector.steering()) is not None]


def _captured_layers(request: CompletionRequest, model: ServedModel) -> list[int]:
    asked = request.output_residual_stream
    if asked is None:
        return []
    if asked is True:
        return list(range(model.layers))
    _check_layers("output_residual_stream", asked, request, model)
    return list(asked)


def _check_layers(field: str, layers: list[int], request: CompletionRequest, model: ServedModel) -> None:
    if max(layers) >= model.layers:
        raise InvalidRequest(
            f"{field} names the Layer {max(layers)}; {request.model} has the Layers 0 to {model.layers - 1}.",
            param=field,
        )


def _check_size(
    request: CompletionRequest, model: ServedModel, prompts: list[list[int]], capture: list[int], limits: Limits
) -> None:
    """The tensors at their longest: every choice's prompt and all but the last of its max_tokens."""
    left = model.max_model_len - max(map(len, prompts))
    max_tokens = request.max_tokens or min(limits.max_tokens_whole, max(1, left))
    positions = request.choices_per_prompt * sum(len(ids) + max_tokens - 1 for ids in prompts)
    size = positions * model.capture_bytes(len(capture))
    if size > limits.activation_bytes:
        raise InvalidRequest(
            f"output_residual_stream asks for {len(capture)} Layers × {positions:,} positions × {model.hidden_size} "
            f"numbers, {size:,} bytes; at most {limits.activation_bytes:,} in one answer. Ask for fewer Layers or a "
            "smaller max_tokens; a harvest reads more.",
            param="output_residual_stream",
        )
