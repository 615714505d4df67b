from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from acs.events.harvest import Harvest, HarvestStatus, Terms, WrittenShard
from acs.events.ids import uuid7

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TERMS = Terms("acct_1", "key_1", "toy", "hold_1", "req-1", "ab" * 32, 3, 30, 2, [0, 2], 64, "all", 15_360)
SHARD = WrittenShard("shard-00000-aaaaaaaa.parquet", 20, 900, "aa" * 32, 2, 20, 5, 7)


@pytest.fixture
def harvest():
    return Harvest.submit(uuid7(), NOW, TERMS)


@pytest.fixture
def running(harvest):
    harvest.start("runner-1", NOW + timedelta(seconds=1))
    return harvest


def kinds(harvest):
    return [type(event).__name__ for event in harvest.collect_events()]


def test_a_harvest_remembers_its_terms_and_waits(harvest):
    assert harvest.record.terms == TERMS
    assert (harvest.record.status, harvest.record.submitted_at) == (HarvestStatus.PENDING, NOW)


def test_another_runner_goes_on_with_the_shards_that_were_written(running):
    running.note_shard(1, SHARD, NOW)
    running.start("runner-2", NOW + timedelta(hours=1))
    record = running.record
    assert (record.status, record.runs, record.runner) == (HarvestStatus.RUNNING, 2, "runner-2")
    assert record.started_at == NOW + timedelta(seconds=1)
    assert record.shards == {1: SHARD}


def test_progress_is_that_of_the_shards_that_are_written(running):
    running.note_shard(1, SHARD, NOW)
    running.note_shard(0, replace(SHARD, prompts=1, tokens=10), NOW)
    assert (running.record.prompts_done, running.record.tokens_done) == (3, 30)
    assert running.record.bytes_done == 2 * SHARD.bytes


def test_a_shard_is_committed_once_whatever_a_writer_presumed_dead_says(running):
    running.note_shard(0, SHARD, NOW)
    running.note_shard(0, replace(SHARD, file="shard-00000-bbbbbbbb.parquet"), NOW)
    assert running.record.shards == {0: SHARD}
    assert kinds(running) == ["Created", "Started", "ShardWritten"]


@pytest.mark.parametrize(
    ("end", "status", "word"),
    [
        (lambda harvest: harvest.finish("cd" * 32, NOW), HarvestStatus.DONE, None),
        (lambda harvest: harvest.fail("storage_full", NOW), HarvestStatus.FAILED, "storage_full"),
        (lambda harvest: harvest.cancel("asked", NOW), HarvestStatus.CANCELLED, "asked"),
    ],
)
def test_it_ends_once_and_says_why_and_later_its_files_go(running, end, status, word):
    end(running)
    record = running.record
    assert (record.status, record.word, record.finished_at, record.expired) == (status, word, NOW, False)
    assert status.ended
    running.expire(NOW + timedelta(days=7))
    assert running.record.expired


def test_replayed_from_its_events_it_is_the_same(running):
    running.note_shard(0, SHARD, NOW)
    running.finish("cd" * 32, NOW)
    again = None
    for event in running.collect_events():
        again = event.mutate(again)
    assert again.record == running.record


def test_a_checkpoint_restores_it(running):
    restored = Harvest.restored(running.id, running.version, running.record)
    restored.cancel("asked", NOW)
    assert restored.version == running.version + 1
