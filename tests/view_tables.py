"""The views, filled, and all that is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acs.storage.event_store import EventStore
from acs.storage.views.database import BATCH_EVENTS, ViewsDatabase


def tables(views: ViewsDatabase) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table and view, sorted: what "the same tables, row for row" means."""
    names = views.read(
        "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'main' AND name NOT IN "
        "(SELECT view_name FROM duckdb_views() WHERE temporary OR internal) AND name <> 'batch' ORDER BY name"
    )
    return {row["name"]: views.read(f"SELECT * FROM {row['name']} ORDER BY ALL") for row in names}


def caught_up(store: EventStore, path: Path | None = None, batch: int = BATCH_EVENTS) -> ViewsDatabase:
    views = ViewsDatabase(store, path)
    while views.catch_up(batch):
        pass
    return views
