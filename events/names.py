"""What people may call things: the rule for the names of accounts and keys, and for an email."""

from __future__ import annotations

from acs.events.refused import Refused

NAME_CHARACTERS = 64
EMAIL_CHARACTERS = 254  # the longest path of RFC 5321, less its two brackets


def check_name(name: str) -> None:
    """Raises InvalidName. Printable only: a name is shown in tables and must not carry line breaks or escapes."""
    if not 1 <= len(name) <= NAME_CHARACTERS:
        raise InvalidName(f"The name has {len(name)} characters; 1 to {NAME_CHARACTERS} are allowed.")
    if not name.isprintable() or name.isspace():
        raise InvalidName("The name is blank or holds a character that cannot be printed.")


def check_email(email: str) -> None:
    """Raises InvalidEmail. Only the shape `someone@somewhere` is judged."""
    local, at, domain = email.rpartition("@")
    if len(email) > EMAIL_CHARACTERS:
        raise InvalidEmail(f"The email has {len(email)} characters; at most {EMAIL_CHARACTERS} are allowed.")
    if not (local and at and domain) or not email.isprintable() or " " in email:
        raise InvalidEmail("The email is not of the form someone@somewhere.")


class InvalidName(Refused):
    pass


class InvalidEmail(Refused):
    pass
