"""Requests made from /openapi.json, good and bad: no server error, and no answer that the page does not document."""

from collections import defaultdict
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from acs.platform.harvests.links import Links
from acs.platform.key_book import KeyBook
from acs.platform.ledger.client import LedgerClient
from acs.platform.ledger.contract import Standing
from acs.platform.limits import Limits
from acs.platform.wiring import Services
from acs.serve_apps.api.app import create_app
from acs.storage.blobs import Blobs
from acs.storage.shards.store import Store


async def nowhere():
    raise AssertionError("nothing is asked before the fixture's application is there")


class Front:
    """The tests are made from the page before any fixture runs; each is then sent to the application of its fixture."""

    def __init__(self):
        blobs = Blobs(Path(), 1)
        files, links = Store.at("/nonexistent"), Links(b"", "http://api")
        parts = KeyBook(lease_s=1), {}, LedgerClient(nowhere), blobs, blobs, blobs, blobs, files, links
        self.app = create_app(Services(Limits(), *parts))

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


front = Front()
schema = schemathesis.openapi.from_asgi("/openapi.json", front)
bounded = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def served(api):
    front.app = api.app
    return api


ANSWERED = defaultdict(set)


def excluded(case):
    """What must hold between fields, and that the model exists, no schema of a body can say: a sound body may be
    refused. A query parameter that nobody knows is ignored, as is usual.
    """
    names = ["positive_data_acceptance", *(["negative_data_rejection"] if case.method == "GET" else [])]
    return [CHECKS.get_one(name) for name in names]


def bring_to_the_engine(body):
    """The model there is, and few tokens: most of what is made would otherwise end at the model's name."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = "toy"
        if type(body.get("max_tokens")) is int and 3 < body["max_tokens"] <= 2000:
            body["max_tokens"] = 3


@schema.parametrize()
@bounded
def test_with_a_key_every_answer_is_documented(case, served):
    bring_to_the_engine(case.body)
    headers = {"Authorization": f"Bearer {served.secrets[Standing.ACCEPTED]}"}
    answer = case.call_and_validate(headers=headers, excluded_checks=excluded(case))
    ANSWERED[case.operation.label].add(answer.status_code)
    assert served.running == 0


def test_good_and_bad_requests_were_among_them():
    assert ANSWERED["POST /v1/completions"] >= {200, 400, 405}
    assert ANSWERED["POST /detokenize"] >= {200, 400}


@schema.parametrize()
@bounded
def test_without_a_key_every_answer_is_documented(case, served):
    case.call_and_validate(headers={"Authorization": ""})
    assert served.engine.asked == []
