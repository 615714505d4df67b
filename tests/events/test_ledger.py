import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from acs.events.hold import HoldStatus, Price, Quote
from acs.events.ids import uuid7
from acs.events.ledger import BudgetExceeded, ChargeExceedsHold, Ledger, UnknownHold, Use, month_of

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ACCOUNT = uuid7()
KEYS = ("key_a", "key_b")
HUNDRED = Quote(prompt_tokens=10, choices=1, max_tokens=90)


def ledger_of(budget=None, key_budgets=None):
    return Ledger.open(f"acct_{ACCOUNT.hex}", ACCOUNT, NOW, budget, key_budgets or {})


def place(ledger, hold_id="hold_1", quote=HUNDRED, key_id="key_a", now=NOW, clamp=False, min_tokens=0):
    fitting = ledger.fitting(quote, key_id, min_tokens=min_tokens, clamp=clamp)
    return ledger.place(
        hold_id,
        fitting,
        key_id=key_id,
        request_id="req",
        model="toy",
        kind="completion",
        owner="ingress_1",
        user=None,
        prompt_micro_usd_per_million=1000,
        completion_micro_usd_per_million=3000,
        timestamp=now,
    )


def kinds(ledger):
    return [type(event).__name__ for event in ledger.collect_events()]


def test_a_hold_takes_its_tokens_from_the_budget_and_a_charge_gives_back_what_was_not_used():
    ledger = ledger_of(budget=100)
    place(ledger)
    assert ledger.book.account.left == 0
    assert ledger.settle("hold_1", 10, 5, 200, NOW) is HoldStatus.SETTLED
    assert ledger.book.account == Use(100, held=0, charged=15)


def test_a_hold_that_does_not_fit_is_refused_and_nothing_is_recorded():
    ledger = ledger_of(budget=99)
    with pytest.raises(BudgetExceeded, match=r"at least 100 tokens; 99 are left"):
        place(ledger)
    assert kinds(ledger) == ["Created"]


@pytest.mark.parametrize(
    ("left", "quote", "min_tokens", "applied"),
    [
        (100, Quote(10, 1, 90), 0, 90),
        (50, Quote(10, 1, 90), 0, 40),
        (50, Quote(10, 4, 90), 0, 10),  # of each choice
        (53, Quote(10, 4, 90), 0, 10),
        (11, Quote(10, 1, 90), 0, 1),
        (50, Quote(10, 4, 90), 10, 10),
    ],
)
def test_max_tokens_is_lowered_to_what_is_left(left, quote, min_tokens, applied):
    assert ledger_of(budget=left).fitting(quote, "key_a", min_tokens=min_tokens, clamp=True).max_tokens == applied


@pytest.mark.parametrize(("left", "choices", "min_tokens"), [(10, 1, 0), (13, 4, 0), (50, 4, 11), (0, 1, 0)])
def test_less_than_one_token_or_min_tokens_a_choice_is_refused_rather_than_lowered(left, choices, min_tokens):
    with pytest.raises(BudgetExceeded):
        ledger_of(budget=left).fitting(Quote(10, choices, 90), "key_a", min_tokens=min_tokens, clamp=True)


def test_a_keys_own_budget_binds_it_alone():
    ledger = ledger_of(budget=1000, key_budgets={"key_a": 100})
    place(ledger, "hold_1")
    with pytest.raises(BudgetExceeded):
        place(ledger, "hold_2")
    place(ledger, "hold_3", key_id="key_b")
    ledger.change_budget("key_a", 200, NOW)
    place(ledger, "hold_4")
    ledger.change_budget("key_a", None, NOW)
    place(ledger, "hold_5")
    assert ledger.book.account.held == 400


def test_a_budget_lowered_below_what_is_used_leaves_nothing_and_settling_still_works():
    ledger = ledger_of(budget=100)
    place(ledger)
    ledger.change_budget(None, 5, NOW)
    assert ledger.book.account.left == 0
    assert ledger.settle("hold_1", 10, 90, 200, NOW) is HoldStatus.SETTLED


def test_a_change_to_the_same_budget_is_no_event():
    ledger = ledger_of(budget=100)
    ledger.change_budget(None, 100, NOW)
    ledger.change_budget("key_a", None, NOW)
    assert kinds(ledger) == ["Created"]


def test_the_cost_is_exact():
    ledger = ledger_of()
    place(ledger)
    ledger.settle("hold_1", 10, 7, 200, NOW)
    settled = ledger.collect_events()[-1]
    assert settled.cost_pico_usd == 10 * 1000 + 7 * 3000
    assert Price(1, 1).cost_pico_usd(10**15, 1) == 10**15 + 1


@pytest.mark.parametrize("used", [(10, 91), (11, 0), (0, 100)], ids=str)
def test_a_charge_above_its_hold_is_refused_and_the_hold_stays_open(used):
    """Neither kind of token may stand in for the other: they have two prices."""
    ledger = ledger_of()
    place(ledger)
    with pytest.raises(ChargeExceedsHold):
        ledger.settle("hold_1", *used, 200, NOW)
    assert ledger.status_of("hold_1") is HoldStatus.OPEN


def test_the_same_resolution_again_changes_nothing_and_is_no_event():
    ledger = ledger_of()
    place(ledger, "hold_1")
    place(ledger, "hold_2")
    for _ in range(2):
        assert ledger.settle("hold_1", 10, 5, 200, NOW) is HoldStatus.SETTLED
        assert ledger.release("hold_2", "vllm_engine_dead", 502, NOW) is HoldStatus.RELEASED
    assert kinds(ledger) == ["Created", "HoldPlaced", "HoldPlaced", "HoldSettled", "HoldReleased"]


def test_a_settlement_after_expiry_is_answered_and_recorded_and_charges_nothing():
    ledger = ledger_of()
    place(ledger)
    assert ledger.expire("hold_1", NOW) is HoldStatus.EXPIRED
    assert ledger.settle("hold_1", 10, 5, 200, NOW) is HoldStatus.EXPIRED
    assert ledger.book.account == Use(None, 0, 0)
    late = ledger.collect_events()[-1]
    assert (late.resolved_as, late.asked_as) == ("expired", "settled")
    assert (late.prompt_tokens, late.completion_tokens) == (10, 5)


def test_a_resolved_hold_is_remembered_for_a_day():
    ledger = ledger_of()
    place(ledger, "hold_1")
    place(ledger, "hold_2")
    place(ledger, "hold_3")
    ledger.settle("hold_1", 10, 5, 200, NOW)
    ledger.settle("hold_2", 10, 5, 200, NOW + timedelta(hours=23))
    assert ledger.status_of("hold_1") is HoldStatus.SETTLED
    ledger.settle("hold_3", 10, 5, 200, NOW + timedelta(hours=24, seconds=1))
    with pytest.raises(UnknownHold):
        ledger.settle("hold_1", 10, 5, 200, NOW)
    assert ledger.status_of("hold_2") is HoldStatus.SETTLED


def test_a_hold_that_never_was_is_unknown():
    with pytest.raises(UnknownHold):
        ledger_of().release("hold_1", "x", None, NOW)


def test_the_month_is_that_of_utc():
    tokyo = datetime.fromisoformat("2026-12-01T08:59:59+09:00")
    assert month_of(tokyo) == "2026-11"
    assert Ledger.id_of(ACCOUNT, "2026-11") == ledger_of().id != Ledger.id_of(ACCOUNT, "2026-12")


class LedgerMachine(RuleBasedStateMachine):
    """Any order of commands, against a plain model: what the ledger says is what the model says, always."""

    holds = Bundle("holds")

    def __init__(self):
        super().__init__()
        self.ledger = ledger_of(budget=500, key_budgets={"key_a": 200})
        self.budgets = {None: 500, "key_a": 200, "key_b": None}
        self.open = {}  # hold id → (key, tokens)
        self.charged = []  # (key, tokens)
        self.log = []

    def used(self, key=None):
        counted = [*self.open.values(), *self.charged]
        return sum(tokens for owner, tokens in counted if key in (None, owner))

    def left(self, key):
        lefts = [max(0, self.budgets[k] - self.used(k)) for k in (None, key) if self.budgets[k] is not None]
        return min(lefts, default=None)

    @rule(
        target=holds,
        key=st.sampled_from(KEYS),
        prompt=st.integers(1, 60),
        choices=st.integers(1, 4),
        max_tokens=st.integers(1, 60),
        min_tokens=st.integers(0, 3),
        clamp=st.booleans(),
    )
    def place(self, key, prompt, choices, max_tokens, min_tokens, clamp):
        hold_id = f"hold_{uuid7().hex}"
        left, whole = self.left(key), prompt + choices * max_tokens
        try:
            hold = place(
                self.ledger, hold_id, Quote(prompt, choices, max_tokens), key, clamp=clamp, min_tokens=min_tokens
            )
        except BudgetExceeded:
            assert left < whole
            assert not clamp or left < prompt + choices * max(1, min_tokens)
            return "hold_refused"
        assert hold.tokens == whole if left is None or whole <= left else clamp and hold.tokens <= left
        self.open[hold_id] = key, hold.tokens
        return hold_id

    @rule(hold_id=holds, share=st.floats(0, 1), again=st.booleans())
    def settle(self, hold_id, share, again):
        known = self.open.pop(hold_id, None)
        quote = self.ledger.book.holds[hold_id].quote if known else HUNDRED
        prompt, completion = int(quote.prompt_tokens * share), int(quote.completion_tokens * share)
        for _ in range(1 + again):
            self.resolve(lambda: self.ledger.settle(hold_id, prompt, completion, 200, NOW))
        if known:
            self.charged.append((known[0], prompt + completion))

    @rule(hold_id=holds)
    def release(self, hold_id):
        self.open.pop(hold_id, None)
        self.resolve(lambda: self.ledger.release(hold_id, "circuit_open", 503, NOW))

    @rule(hold_id=consumes(holds))
    def expire(self, hold_id):
        self.open.pop(hold_id, None)
        self.resolve(lambda: self.ledger.expire(hold_id, NOW))

    def resolve(self, command):
        with contextlib.suppress(UnknownHold):  # of one that was refused
            assert command() is not HoldStatus.OPEN

    @rule(key=st.sampled_from([None, *KEYS]), tokens=st.none() | st.integers(0, 800))
    def change_budget(self, key, tokens):
        self.ledger.change_budget(key, tokens, NOW)
        self.budgets[key] = tokens

    @invariant()
    def every_number_is_the_models(self):
        book = self.ledger.book
        assert set(book.holds) == set(self.open)
        assert book.account.held + book.account.charged == self.used()
        for key in KEYS:
            use = book.keys.get(key, Use())
            assert (use.budget, use.held + use.charged) == (self.budgets[key], self.used(key))

    @invariant()
    def the_events_alone_give_the_same_ledger(self):
        self.log += self.ledger.collect_events()
        again = None
        for event in self.log:
            again = event.mutate(again)
        assert again.book == self.ledger.book


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
