import time
import uuid

import pytest

from acs.events.ids import ACCOUNT, KEY, parse, show, uuid7


def test_an_id_is_a_version_7_uuid_whose_first_48_bits_are_the_time():
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_an_id_is_shown_with_its_kind_and_read_back():
    made = uuid7()
    assert show(ACCOUNT, made) == f"acct_{made.hex}"
    assert parse(ACCOUNT, show(ACCOUNT, made)) == made


@pytest.mark.parametrize(
    "text", ["", "acct_", "key_" + "0" * 32, "acct_" + "0" * 31, "acct_" + "A" * 32, "acct_" + "g" * 32]
)
def test_what_is_not_an_id_of_the_kind_is_none(text):
    assert parse(ACCOUNT, text) is None
    assert parse(KEY, "acct_" + "0" * 32) is None
