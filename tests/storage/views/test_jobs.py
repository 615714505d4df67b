"""The table of Jobs is what their events say, however they are cut into batches."""

import pytest
from history import History
from view_tables import caught_up, tables

from acs.events.job import JobStatus
from acs.storage.views.verify import differences


@pytest.fixture
def worked(store):
    history = History(running=3)
    history.live(20)
    history.work(100)
    history.store(store)
    return store


def test_jobs_are_as_their_events_made_them(worked):
    views = caught_up(worked)
    assert list(differences(worked, views)) == []
    rows = tables(views)["jobs"]
    assert {row["status"] for row in rows} == set(JobStatus)
    assert any(row["expired_at"] for row in rows)
    assert all((row["http_status"] is None) == (row["result_bytes"] is None) for row in rows)
    assert {row["error_code"] for row in rows if row["status"] == "failed"} == {"vllm_oom"}


def test_small_batches_give_the_same_rows_as_one(worked):
    assert tables(caught_up(worked, batch=7))["jobs"] == tables(caught_up(worked))["jobs"]
