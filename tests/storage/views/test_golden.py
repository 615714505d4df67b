"""What earlier releases wrote is read as it was: each recorded store gives its recorded state."""

import json
import shutil
from pathlib import Path

import pytest
from view_tables import caught_up, tables

from acs.storage.event_store import open_event_store
from acs.storage.views.verify import differences

GOLDEN = Path(__file__).parents[1] / "golden"
RELEASES = sorted(path.stem for path in GOLDEN.glob("*.sqlite"))


def test_there_is_a_recorded_release():
    assert "0.1.0" in RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_a_recorded_event_log_replays_to_its_recorded_state(release, tmp_path):
    """Columns that were added since are left out; none may go, none may say something else."""
    shutil.copy(GOLDEN / f"{release}.sqlite", tmp_path / "events.sqlite")
    store = open_event_store(tmp_path / "events.sqlite")
    views = caught_up(store)
    recorded = [json.loads(line) for line in (GOLDEN / f"{release}.jsonl").read_text().splitlines()]
    now = json.loads(json.dumps(tables(views), default=str))
    for table in {table for table, _ in recorded}:
        rows = [row for of, row in recorded if of == table]
        assert [{column: row[column] for column in rows[0]} for row in now[table]] == rows, table
    assert list(differences(store, views)) == []
