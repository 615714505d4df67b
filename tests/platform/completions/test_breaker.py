"""The circuit breaker, on a clock of its own."""

import pytest

from acs.platform.completions.breaker import Breaker
from acs.platform.errors import CircuitOpen

OPEN_S = 30


@pytest.fixture
def breaker(clock):
    return Breaker(5, OPEN_S, clock.now)


def fail(breaker, times):
    for _ in range(times):
        breaker.admit()
        breaker.failed()


def refusal(breaker):
    with pytest.raises(CircuitOpen) as caught:
        breaker.admit()
    return caught.value


def test_it_opens_at_the_fifth_failure_in_a_row(breaker):
    fail(breaker, 4)
    assert breaker.admit() is False
    breaker.failed()
    assert refusal(breaker).headers() == {"Retry-After": "30"}


def test_a_success_in_between_starts_the_count_again(breaker):
    fail(breaker, 4)
    breaker.admit()
    breaker.succeeded()
    fail(breaker, 4)
    assert breaker.admit() is False


def test_what_says_nothing_about_the_engine_neither_counts_nor_resets(breaker):
    fail(breaker, 4)
    for _ in range(10):
        breaker.abandoned(breaker.admit())
    fail(breaker, 1)
    refusal(breaker)


def test_retry_after_is_never_shorter_than_what_is_left(breaker, clock):
    fail(breaker, 5)
    clock.advance(0.6)
    assert refusal(breaker).headers()["Retry-After"] == "30"
    clock.advance(29)
    assert refusal(breaker).headers()["Retry-After"] == "1"


def test_after_its_time_one_probe_passes_and_the_others_wait(breaker, clock):
    fail(breaker, 5)
    clock.advance(OPEN_S)
    assert breaker.admit() is True
    assert refusal(breaker).headers()["Retry-After"] == "1"


def test_a_probe_that_succeeds_closes_it(breaker, clock):
    fail(breaker, 5)
    clock.advance(OPEN_S)
    breaker.admit()
    breaker.succeeded()
    fail(breaker, 4)
    assert breaker.admit() is False


def test_a_probe_that_fails_opens_it_for_as_long_again(breaker, clock):
    fail(breaker, 5)
    clock.advance(OPEN_S)
    fail(breaker, 1)
    clock.advance(OPEN_S - 1)
    refusal(breaker)
    clock.advance(1)
    assert breaker.admit() is True


def test_a_probe_that_is_abandoned_leaves_its_place_to_the_next(breaker, clock):
    fail(breaker, 5)
    clock.advance(OPEN_S)
    breaker.abandoned(breaker.admit())
    assert breaker.admit() is True


def test_an_older_request_that_is_abandoned_does_not_free_the_probes_place(breaker, clock):
    older = breaker.admit()
    fail(breaker, 5)
    clock.advance(OPEN_S)
    assert breaker.admit() is True
    breaker.abandoned(older)
    refusal(breaker)
