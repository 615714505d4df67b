"""What an operator may set a limit to."""

import pytest

from acs.platform.limits import Limits


def test_a_limit_is_set_by_its_variable_and_the_others_stay():
    limits = Limits.from_environ({"ACS_LIMIT_CHOICES": "64", "ACS_LIMIT_KEY_LEASE_S": "0.5", "OTHER": "x"})
    assert limits == Limits(choices=64, key_lease_s=0.5)


def test_seconds_that_are_whole_are_shown_whole():
    limits = Limits.from_environ({"ACS_LIMIT_KEEPALIVE_S": "4"})
    assert [f"{value:,}" for name, value, _ in limits.table() if name == "keepalive_s"] == ["4"]


@pytest.mark.parametrize("text", ["0", "-1", "", "x", "nan", "inf", "1e999", "True"])
@pytest.mark.parametrize("name", ["ACS_LIMIT_CHOICES", "ACS_LIMIT_KEEPALIVE_S"])
def test_what_is_no_positive_number_is_refused_by_the_variables_name(name, text):
    with pytest.raises(ValueError, match=f"{name}='{text}' is not a positive"):
        Limits.from_environ({name: text})


def test_a_count_has_no_fractions():
    with pytest.raises(ValueError, match=r"ACS_LIMIT_CHOICES='1\.5' is not a positive whole number"):
        Limits.from_environ({"ACS_LIMIT_CHOICES": "1.5"})
