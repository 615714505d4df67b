"""Each kind of event as a SQL view of the batch that is being folded, whose rows are (position, topic, aggregate_id,
state).

`Ledger.HoldPlaced` is `ledger_hold_placed`: a column a field, and of every event `position`, `aggregate_id` (32 hex
digits) and `happened_at` (UTC). So the folds are plain SQL, and no Python runs for a single event.
"""

from __future__ import annotations

import re
from types import NoneType
from typing import Any, get_args, get_type_hints
from uuid import UUID

import orjson
from eventsourcing.domain import Aggregate, CanMutateAggregate
from eventsourcing.utils import get_topic

from acs.events.account import Account
from acs.events.api_key import ApiKey
from acs.events.harvest import Harvest
from acs.events.job import Job
from acs.events.ledger import Ledger
from acs.events.loom import Loom
from acs.events.platform_settings import PlatformSettings

AGGREGATES: tuple[type[Aggregate], ...] = (Account, ApiKey, Harvest, Job, Ledger, Loom, PlatformSettings)
COLUMN_TYPES: dict[Any, str] = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    UUID: "VARCHAR",
    dict[str, int]: "MAP(VARCHAR, BIGINT)",
    list[str]: "VARCHAR[]",
    list[int]: "BIGINT[]",
    list[str | None]: "VARCHAR[]",
    list[int | None]: "BIGINT[]",
    list[float | None]: "DOUBLE[]",
}
WRAPPED = (UUID,)  # the store writes these as {"_type_": …, "_data_": …}, and a time as well
COMMON = frozenset(Aggregate.Created.__dataclass_fields__)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _select(event: type[Any]) -> str:
    values = ["position", "aggregate_id", "timezone('UTC', event.timestamp._data_) AS happened_at"]
    shape: dict[str, Any] = {"timestamp": {"_data_": "TIMESTAMPTZ"}}
    for name, hint in get_type_hints(event).items():
        if name in event.__dataclass_fields__ and name not in COMMON:
            (plain,) = {*get_args(hint)} - {NoneType} if NoneType in get_args(hint) else {hint}
            column_type = COLUMN_TYPES[plain]
            shape[name] = {"_data_": column_type} if plain in WRAPPED else column_type
            values.append(f'event."{name}"' + (f'._data_ AS "{name}"' if plain in WRAPPED else ""))
    parsed = f"from_json_strict(state, '{orjson.dumps(shape).decode()}') AS event"  # strict: a field short is an error
    batch = f"SELECT position, aggregate_id, {parsed} FROM batch WHERE topic = '{get_topic(event)}'"
    return f"SELECT {', '.join(values)} FROM ({batch})"


KINDS: dict[str, tuple[str, str]] = {  # topic → the view's name, and what it selects from `batch`
    get_topic(event): (f"{_snake(aggregate.__name__)}_{_snake(event.__name__)}", _select(event))
    for aggregate in AGGREGATES
    for event in vars(aggregate).values()
    if isinstance(event, type) and issubclass(event, CanMutateAggregate) and event.__name__ != "Event"
}
