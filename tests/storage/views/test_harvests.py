"""The tables of harvests are what their events say, however they are cut into batches."""

import pytest
from history import History
from view_tables import caught_up, tables

from acs.events.harvest import HarvestStatus
from acs.storage.views.verify import differences


@pytest.fixture
def harvested(store):
    history = History(running=3)
    history.live(20)
    history.harvest(100)
    history.store(store)
    return store


def test_harvests_and_their_shards_are_as_their_events_made_them(harvested):
    views = caught_up(harvested)
    assert list(differences(harvested, views)) == []
    rows = tables(views)
    assert {row["status"] for row in rows["harvests"]} == set(HarvestStatus)
    assert any(row["expired_at"] for row in rows["harvests"])
    assert {row["word"] for row in rows["harvests"] if row["status"] == "failed"} == {"storage_full"}
    assert rows["harvests"][0]["layers"] == [1, 3]
    done = {row["harvest_id"] for row in rows["harvests"] if row["status"] == "done"}
    assert all([shard["harvest_id"] for shard in rows["harvest_shards"]].count(one) == 2 for one in done)


def test_small_batches_give_the_same_rows_as_one(harvested):
    small, large = tables(caught_up(harvested, batch=7)), tables(caught_up(harvested))
    assert small["harvests"] == large["harvests"]
    assert small["harvest_shards"] == large["harvest_shards"]
