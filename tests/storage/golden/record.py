"""Records what a release writes: `python tests/storage/golden/record.py 0.1.0`, once a release, never again for it.

`<release>.sqlite` is an event store, `<release>.jsonl` every row of the views that it gives, as [table, row].
"""

from __future__ import annotations

import json
import sqlite3
import sys
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from history import History  # noqa: E402
from view_tables import caught_up, tables  # noqa: E402

from acs.storage.event_store import open_event_store  # noqa: E402


def record(release: str) -> None:
    path = HERE / f"{release}.sqlite"
    if path.exists():
        raise SystemExit(f"{path} is recorded already: what was released does not change")
    history = History(seed=2026, running=5, step=timedelta(minutes=15))
    history.live(60)
    store = open_event_store(path)
    store.claim()
    history.store(store)
    with (HERE / f"{release}.jsonl").open("w") as recorded:
        for table, rows in tables(caught_up(store)).items():
            if table != "projection":  # it names a version of the SQL
                recorded.writelines(json.dumps([table, row], default=str) + "\n" for row in rows)
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # one file


if __name__ == "__main__":
    record(sys.argv[1])
