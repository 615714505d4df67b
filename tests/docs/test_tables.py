"""The tables of the pages say what the code says, so that neither can drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acs.platform import errors
from acs.platform.catalogue import Catalogue
from acs.platform.completions.breaker import Breaker
from acs.platform.completions.plan import Plan, plan_completion
from acs.platform.completions.request import CompletionRequest
from acs.platform.completions.served import ServedModel
from acs.platform.errors import ApiError
from acs.platform.limits import Limits
from acs.platform.settings import SHIPPED_CATALOGUES
from acs.platform.tokenizer import ModelTokenizer
from acs.serve_apps.inference.fake_engine import FakeEngine
from docs import pages, views_table

COMPLETIONS = pages.ROOT / "docs" / "completions.md"
ERRORS = pages.ROOT / "docs" / "errors.md"
TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def schema_of(field: str) -> dict[str, Any]:
    """The one alternative of a field's schema that is not null."""
    schema: dict[str, Any] = CompletionRequest.model_json_schema()["properties"][field]
    alternatives = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    return alternatives[0] if len(alternatives) == 1 else {}


def bounds_of(schema: dict[str, Any]) -> str:
    def show(number: float) -> str:
        return f"{number:,g}" if isinstance(number, float) and not number.is_integer() else f"{int(number):,}"

    if "maxLength" in schema:
        return f"at most {schema['maxLength']} characters"
    if "maximum" not in schema:
        return ""
    low = f"above {show(schema['exclusiveMinimum'])}" if "exclusiveMinimum" in schema else show(schema["minimum"])
    return f"{low} to {show(schema['maximum'])}".replace("-", "−")


def test_the_fields_of_a_completion_are_listed_with_their_types_and_bounds() -> None:
    rows = pages.table(COMPLETIONS, "field")
    assert [row[0] for row in rows] == list(CompletionRequest.model_fields)
    for field, kind, bounds, *_ in rows:
        schema = schema_of(field)
        assert bounds == bounds_of(schema), field
        if schema.get("type") in TYPES:
            assert kind == TYPES[schema["type"]], field


async def test_the_defaults_of_a_completion_are_those_that_reach_the_engine(toy_checkpoint: Path) -> None:
    plan = await bare_plan(toy_checkpoint)
    used = {"n": plan.generate.n, "logprobs": plan.generate.logprobs, "prompt_logprobs": plan.generate.prompt_logprobs}
    used |= {name: getattr(plan.generate.sampling, name) for name in plan.generate.sampling.__struct_fields__}
    del used["max_tokens"]  # "what fits"
    shown = {row[0]: row[3] for row in pages.table(COMPLETIONS, "field")}
    for name, value in used.items():
        said = "none" if value is None or value == [] else str(value).lower() if value is False else f"{value:g}"
        assert shown[name] == said, name


async def bare_plan(checkpoint: Path) -> Plan:
    tokenizer = ModelTokenizer(checkpoint)
    entry = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]
    model = ServedModel(entry, tokenizer, FakeEngine(tokenizer), Breaker(5, 30))
    return await plan_completion(CompletionRequest(model="toy", prompt="The sky is"), {"toy": model}, Limits())


def every_error(kind: type[ApiError] = ApiError) -> list[ApiError]:
    """One of each that can be answered, and a second where a class has two statuses."""
    below = kind.__subclasses__()
    if below:
        return [error for sub in below for error in every_error(sub)]
    if kind is errors.MethodNotAllowed:
        return [errors.MethodNotAllowed("", allow="GET")]
    if kind is errors.RateLimited:
        return [errors.RateLimited("", retry_after_s=60)]
    if kind is errors.CircuitOpen:
        return [errors.CircuitOpen("", retry_after_s=Limits().breaker_open_s)]
    if kind is errors.UpstreamUnreachable:
        return [errors.UpstreamUnreachable(""), errors.UpstreamUnreachable("", cold=True)]
    return [kind("")]


def test_every_error_is_listed_with_its_status_headers_and_whether_it_is_retryable() -> None:
    listed = {(status, code, headers, retry) for status, code, _, headers, retry in pages.table(ERRORS, "status")}
    assert listed == {
        (
            str(error.status),
            str(error.code or "null"),
            "`, `".join(
                name if name in ("Allow", "Content-Range") else f"{name}: {value}"
                for name, value in error.headers().items()
            ),
            str(error.body("")["error"].get("retryable", "–")).lower(),
        )
        for error in every_error()
    }


def test_the_limits_are_listed_with_their_defaults() -> None:
    assert pages.table(ERRORS, "limit") == [[name, f"{value:,}", meaning] for name, value, meaning in Limits().table()]


def test_the_tables_of_the_views_are_listed_with_the_comments_of_their_schema() -> None:
    listed = [
        [cell.replace("`", "") for cell in row] for row in pages.table(pages.ROOT / "docs" / "tables.md", "table")
    ]
    assert listed == [[cell.replace("`", "") for cell in row] for row in views_table.rows()]
