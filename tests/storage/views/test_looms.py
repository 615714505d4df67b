"""The tables of Looms are what their events say, however they are cut into batches."""

import pytest
from history import History
from view_tables import caught_up, tables

from acs.storage.views.verify import differences


@pytest.fixture
def grown(store):
    history = History(running=3)
    history.live(20)
    history.grow(20)
    history.store(store)
    return store


def test_looms_are_as_their_events_made_them(grown):
    views = caught_up(grown)
    assert list(differences(grown, views)) == []
    rows = tables(views)
    assert {row["status"] for row in rows["loom_branches"]} >= {"pending", "running", "done", "failed"}
    assert any(row["deleted_at"] for row in rows["loom_nodes"])
    assert any(row["deleted_at"] for row in rows["looms"])
    for row in rows["loom_nodes"]:
        if row["tokens"] is not None:
            assert row["status"] == "done"
    assert {row["path_tokens"] for row in rows["loom_nodes"] if row["depth"] and row["tokens"]} == {15}
    assert {row["path_logprob"] for row in rows["loom_nodes"] if row["depth"]} == {None, -4.75}


def test_small_batches_give_the_same_rows_as_one(grown):
    one, many = tables(caught_up(grown)), tables(caught_up(grown, batch=7))
    for table in ("looms", "loom_branches", "loom_nodes", "loom_paths"):
        assert one[table] == many[table]


def test_a_path_is_as_long_as_its_node_is_deep(grown):
    views = caught_up(grown)
    paths = views.read("SELECT path, depth, parent_id FROM loom_paths JOIN loom_nodes USING (node_id)")
    assert max(row["depth"] for row in paths) > 2
    assert all(len(row["path"]) == row["depth"] + 1 for row in paths)
    assert all(row["path"][-2:-1] == ([row["parent_id"]] if row["parent_id"] else []) for row in paths)


def test_a_loom_costs_what_its_branches_were_charged(grown):
    views = caught_up(grown)
    assert views.read("SELECT sum(charged_tokens) AS tokens FROM looms")[0]["tokens"] == sum(
        row["charged_tokens"] for row in tables(views)["charges"] if row["hold_id"] in branch_holds(views)
    )


def branch_holds(views):
    return {row["hold_id"] for row in tables(views)["loom_branches"]}
