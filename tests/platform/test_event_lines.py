"""What an operator sees of each event: every field but those from which a secret could be guessed."""

from datetime import UTC, datetime

from history import History

from acs.events.idempotency import IdempotentRequest
from acs.events.ids import ACCOUNT, show
from acs.platform.event_lines import EventLines


def test_a_line_begins_with_where_when_and_what():
    history = History()
    ada = history.account(keys=())
    line = EventLines().line(7, history.events[0])
    assert line == {
        "position": 7,
        "at": history.now.isoformat(),
        "kind": "Account.Created",
        "account_id": show(ACCOUNT, ada.id),
        "name": "Ada",
        "email": "ada@lab.org",
    }


def test_no_digest_of_a_key_or_of_a_request_is_shown():
    history = History()
    history.account(keys=("laptop",))
    request = IdempotentRequest.begin("0" * 64, "1" * 64, "hold_1", datetime.now(UTC))
    lines = EventLines()
    shown = [lines.line(1, event) for event in [*history.events, *request.collect_events()]]
    assert "hold_1" in str(shown)
    assert not any(secret in str(shown) for secret in ("0" * 64, "1" * 64, history.events[1].digest))
