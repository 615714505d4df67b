"""An ingress's own copy of the keys: judges a request's `Authorization` without leaving the process.

The copy is kept by `follow`, which asks the ledger what is new, for ever. It is trusted for `lease_s` from the moment
the last answered ask was *sent*; past that the ledger may have told an operator "revoked" without us
(`acs.platform.ledger.watchers` has the other half of this argument), so `judge` answers 503 rather than guess.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from acs.events.api_key import digest_of
from acs.platform.clock import Clock, MonotonicClock
from acs.platform.errors import (
    AccountSuspended,
    ApiError,
    InvalidApiKey,
    KeyDisabled,
    KeyRevoked,
    MissingAuthorization,
    PartUnavailable,
)
from acs.platform.ledger.contract import Caller, KeyChanges, KeyStanding, Standing

RETRY_PAUSE_S = 0.2  # between asks while the ledger is coming back
RENEWAL_S = 2.0  # how long a request may wait for a fresh copy; Ray has a killed ledger back in less

_REFUSALS: dict[Standing, tuple[type[ApiError], str]] = {
    Standing.REVOKED: (KeyRevoked, "This API key is revoked."),
    Standing.DISABLED: (KeyDisabled, "This API key is disabled."),
    Standing.SUSPENDED: (AccountSuspended, "The account of this API key is suspended."),
}

_log = logging.getLogger(__name__)


class KeyBook:
    def __init__(self, lease_s: float, clock: Clock | None = None) -> None:
        self.ingress_id = uuid.uuid4().hex  # one a process: a restarted ingress is another one
        self._lease_s = lease_s
        self._clock = clock or MonotonicClock()
        self._epoch: str | None = None
        self._version = -1
        self._keys: dict[str, KeyStanding] = {}
        self._trusted_until = self._clock.now()  # no copy yet
        self._filled = asyncio.Event()
        self._applied = asyncio.Event()  # set once, then replaced: whoever waits on it wakes

    @property
    def fresh(self) -> bool:
        """Whether the copy may be trusted now."""
        return self._clock.now() < self._trusted_until

    async def filled(self) -> None:
        """Returns when the first copy has come: the ingress is then ready to judge."""
        await self._filled.wait()

    async def renewed(self, timeout_s: float = RENEWAL_S) -> None:
        """Returns when the copy is fresh, or after `timeout_s`: a loop that stalled may have the answer unread, and a
        killed ledger is soon back. For a request that finds the copy too old, before it is judged.
        """
        give_up_at = self._clock.now() + timeout_s
        while not self.fresh and self._clock.now() < give_up_at:
            await self._clock.wait(self._applied, give_up_at - self._clock.now())

    def judge(self, authorization: str | None) -> Caller:
        """Raises one of the five 401 errors, or PartUnavailable when the copy is too old to say."""
        key = _key_of(authorization)
        if not self.fresh:
            raise PartUnavailable("Keys cannot be checked at the moment. Try again.")
        known = self._keys.get(digest_of(key))
        if known is None or known.standing is not Standing.ACCEPTED:
            raise refusal_of(known.standing if known else None)
        return known.caller

    async def follow(self, ledger: Any) -> None:
        """Keeps the copy until cancelled. `ledger` is the actor's handle; its death is waited out."""
        answered = True
        while True:
            sent_at = self._clock.now()
            try:
                async with asyncio.timeout(self._lease_s):  # an ask without an answer that long renews nothing
                    changes = await ledger.watch.remote(self.ingress_id, self._epoch, self._version)
                self.apply(changes, sent_at)
                answered = True
            except Exception as error:  # whatever it is, the remedy is the same: ask again
                if answered:  # said once, not at every try
                    _log.warning("the ledger does not answer: %s", type(error).__name__)
                answered = False
                await self._clock.wait(asyncio.Event(), RETRY_PAUSE_S)

    def apply(self, changes: KeyChanges, sent_at: float) -> None:
        """`sent_at` is when the ask was sent that `changes` answers, by this book's clock."""
        if not changes.whole and changes.epoch != self._epoch:
            self._epoch = None  # ask for everything
            raise ValueError("changes to a copy that this ingress does not have")
        if changes.whole:
            self._keys.clear()
        self._keys.update((key.digest, key) for key in changes.keys)
        self._epoch, self._version = changes.epoch, changes.version
        self._trusted_until = sent_at + self._lease_s
        self._filled.set()
        self._applied.set()
        self._applied = asyncio.Event()


def refusal_of(standing: Standing | None) -> ApiError:
    """Of a key that is not ACCEPTED. None: there is no such key."""
    if standing is None:
        return InvalidApiKey("The API key is not known.")
    kind, message = _REFUSALS[standing]
    return kind(message)


def _key_of(authorization: str | None) -> str:
    if not authorization or authorization.isspace():
        raise MissingAuthorization("The Authorization header is missing. Send `Authorization: Bearer <API key>`.")
    scheme, _, key = authorization.strip().partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise InvalidApiKey("The Authorization header is not of the form `Bearer <API key>`.")
    return key
