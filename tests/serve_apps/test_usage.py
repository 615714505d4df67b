"""GET /v1/usage: its shape, its month, and what it answers while the views come back."""

from datetime import UTC, datetime

import pytest
from api_client import running_api

from acs.platform.errors import PartUnavailable
from acs.serve_apps.api.answers import UsageReport

KEYS = ["object", "month", "budget_tokens", "held_tokens", "charged_tokens", "left_tokens", "spend_micro_usd"]


async def test_what_a_completion_used_is_in_it_at_once(api):
    used = (await api.complete(max_tokens=3, n=2)).json()["usage"]
    usage = (await api.http.get("/v1/usage")).json()
    UsageReport.model_validate(usage)
    assert list(usage) == [*KEYS, "by_key", "by_model"]
    assert (usage["held_tokens"], usage["charged_tokens"]) == (0, used["total_tokens"])
    (model,) = usage["by_model"]
    assert (model["model"], model["requests"]) == ("toy", 1)
    assert (model["prompt_tokens"], model["completion_tokens"]) == (used["prompt_tokens"], used["completion_tokens"])
    assert sum(key["charged_tokens"] for key in usage["by_key"]) == used["total_tokens"]


async def test_an_account_that_has_done_nothing_has_every_key_of_the_contract(api):
    usage = (await api.http.get("/v1/usage", params={"month": "2026-11"})).json()
    assert list(usage) == [*KEYS, "by_key", "by_model"]
    assert (usage["object"], usage["month"], usage["charged_tokens"], usage["by_model"]) == ("usage", "2026-11", 0, [])


async def test_without_a_month_it_is_the_present_one(api):
    before = datetime.now(UTC)
    month = (await api.http.get("/v1/usage")).json()["month"]
    assert month in {f"{moment:%Y-%m}" for moment in (before, datetime.now(UTC))}


@pytest.mark.parametrize(
    "month", ["", "2026", "2026-1", "2026-13", "2026-00", "0026-11", "26-11", "2026-11-01", " 2026-11", "٢٠٢٦-11", "x"]
)
async def test_what_is_not_a_month_is_refused(api, month):
    answer = await api.http.get("/v1/usage", params={"month": month})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", "month")


async def test_two_months_are_refused(api):
    answer = await api.http.get("/v1/usage?month=2026-11&month=2026-12")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "month")


async def test_the_key_is_judged_before_the_month(api):
    answer = await api.http.get("/v1/usage?month=x", headers={"Authorization": ""})
    assert answer.status_code == 401


async def test_while_the_views_come_back_it_is_503_without_a_code(toy_checkpoint):
    class Views:
        async def usage(self, account_id, month):
            raise PartUnavailable("The usage cannot be read at the moment. Try again.")

    async with running_api(toy_checkpoint, views=Views()) as api:
        answer = await api.http.get("/v1/usage")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, None)
    assert answer.headers["retry-after"] == "1"
