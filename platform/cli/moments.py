"""Times and months as an operator types them."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime


def moment(text: str) -> datetime:
    """2026-11-03T12:00Z, 2026-11-03T14:00+02:00 or 2026-11-03; UTC where no zone is said. For argparse."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-11-03T12:00Z") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def month(text: str) -> str:
    if not re.fullmatch("[1-9][0-9]{3}-(0[1-9]|1[0-2])", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a month like 2026-11")
    return text
