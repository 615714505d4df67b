"""What every request body has in common: the strict base of its model, and a fault of pydantic's as one sentence."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from acs.platform.errors import InvalidRequest

OURS = "ours"  # the kind of the PydanticCustomErrors raised by our own checks: their messages are sentences already


class Body(BaseModel):
    """The exact types and no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, given: Any) -> Any:
        """One is enough to refuse a body by; pydantic reports each, and a million of them take it 12 s."""
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        unknown = next((name for name in given if name not in fields), None)
        return {name: given[name] for name in (*fields, unknown) if name in given}


B = TypeVar("B", bound=Body)


class Fault(NamedTuple):
    """`field` is the body's own field ("" for an unknown one), `path` leads to the fault inside it, and `message` is a
    sentence whose subject is the path.
    """

    field: str
    path: str
    message: str


def parse_body(kind: type[B], body: object) -> B:
    """Raises InvalidRequest for the first fault."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = faults_of(error)[0]
        raise InvalidRequest(f"{first.path} {first.message}.", param=first.path) from None


def faults_of(error: ValidationError) -> list[Fault]:
    """In pydantic's order: that of the fields, unknown ones last."""
    return [_fault(detail) for detail in error.errors(include_url=False)]


def shown(number: float) -> str:
    """The number for a message; a client may send one of thousands of digits."""
    text = repr(number)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} digits)"


def _fault(detail: Any) -> Fault:
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:100]}" if path else part[:100]
    field, kind = detail["loc"][0], detail["type"]
    if kind == "extra_forbidden":
        return Fault("" if len(detail["loc"]) == 1 else field, path, "is not a field of this request")
    return Fault(field, path, _message(kind, detail["msg"], detail.get("input")))


def _message(kind: str, message: str, value: Any) -> str:
    if kind == OURS:
        return message
    if kind == "missing":
        return "is required"
    if kind in ("too_short", "too_long"):
        return "must not be empty" if kind == "too_short" else message.replace("List should", "must")
    if kind == "model_type":
        return "must be an object"
    if kind == "string_unicode":
        return "holds half of a surrogate pair, which is no text"
    if kind.endswith("_type") or kind == "int_from_float":
        return "must be " + message.removeprefix("Input should be ")
    subject = f"is {shown(value)}; it " if isinstance(value, int | float) else ""
    return subject + message.replace("Input should", "must").replace("String should", "must")
