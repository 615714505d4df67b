"""Jobs of one model that wait for a slot: first come, first served within an account, accounts in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class JobTicket:
    """A Job that waits. `start` is called when its turn has come."""

    job_id: str
    account_id: str
    model: str
    start: Callable[[str], None]


class JobQueue:
    def __init__(self) -> None:
        self._accounts: OrderedDict[str, deque[JobTicket]] = OrderedDict()  # the one at the front is the next

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def add(self, ticket: JobTicket, *, first: bool = False) -> None:
        """`first`: before the account's others, as for a Job whose run was interrupted."""
        tickets = self._accounts.setdefault(ticket.account_id, deque())
        if first:
            tickets.appendleft(ticket)
        else:
            tickets.append(ticket)

    def take(self) -> JobTicket:
        """The next; its account goes to the end."""
        account_id, tickets = next(iter(self._accounts.items()))
        self._accounts.move_to_end(account_id)
        ticket = tickets[0]
        self.remove(ticket)
        return ticket

    def remove(self, ticket: JobTicket) -> None:
        tickets = self._accounts[ticket.account_id]
        tickets.remove(ticket)
        if not tickets:
            del self._accounts[ticket.account_id]
