"""Who reads what begins alike."""

from acs.platform.inference import affinity
from acs.platform.inference.affinity import BLOCK_TOKENS, MORE_CHOICES, Affinity

LONG = list(range(1000))


def test_a_prompt_goes_where_the_longest_beginning_of_it_was_read():
    readers = Affinity()
    assert readers.choose(LONG[:100], {"a": 0, "b": 1}) == "a"
    assert readers.choose(LONG[:500], {"a": 99, "b": 0}) == "b"
    assert readers.choose(LONG[:600], {"a": 0, "b": 5}) == "b"


def test_a_prompt_shorter_than_a_block_goes_to_the_least_busy():
    readers = Affinity()
    short = LONG[: BLOCK_TOKENS - 1]
    assert readers.choose(short, {"a": 1, "b": 0}) == "b"
    assert readers.choose(short, {"a": 0, "b": 1}) == "a"


def test_a_much_busier_reader_is_passed_over_and_so_is_one_that_is_gone():
    readers = Affinity()
    readers.choose(LONG, {"a": 0, "b": 1})
    assert readers.choose(LONG, {"a": MORE_CHOICES + 1, "b": 1}) == "a"
    assert readers.choose(LONG, {"a": MORE_CHOICES + 2, "b": 1}) == "b"
    assert readers.choose(LONG, {"a": 0, "c": 3}) == "a"


def test_one_replica_alone_costs_nothing_to_choose():
    readers = Affinity()
    assert readers.choose(LONG, {"a": 7}) == "a"
    assert not readers._readers


def test_what_was_read_long_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(affinity, "REMEMBERED", 10)
    readers = Affinity()
    readers.choose(LONG[:BLOCK_TOKENS], {"a": 0, "b": 1})
    readers.choose([7] * BLOCK_TOKENS * 10, {"a": 1, "b": 0})
    assert readers.choose(LONG[:BLOCK_TOKENS], {"a": 1, "b": 0}) == "b"
    assert len(readers._readers) == 10
