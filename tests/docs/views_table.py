"""The tables of the views as rows of docs/tables.md; as a program, prints them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from acs.storage.event_store import open_event_store
from acs.storage.views.database import ViewsDatabase
from acs.storage.views.schema import TABLES

COLUMNS = """
SELECT table_name AS of, column_name, data_type, coalesce(comment, '') AS comment
FROM duckdb_columns() WHERE schema_name = 'main' ORDER BY column_index
"""
COMMENTS = """
SELECT table_name AS name, comment FROM duckdb_tables() UNION ALL SELECT view_name, comment FROM duckdb_views()
"""


def rows() -> list[list[str]]:
    """(table, column, type, meaning): one row for the table, then one a column."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_event_store(Path(folder) / "events.sqlite")
        views = ViewsDatabase(store)
        comments = {row["name"]: row["comment"] for row in views.read(COMMENTS)}
        columns = views.read(COLUMNS)
        store.close()
    listed = []
    for table in TABLES:
        listed.append([table, "", "", comments[table]])
        listed += [["", row["column_name"], row["data_type"], row["comment"]] for row in columns if row["of"] == table]
    return listed


if __name__ == "__main__":
    for table, column, data_type, meaning in rows():
        names = (f"`{table}`" if table else "", f"`{column}`" if column else "")
        print("|", " | ".join(cell for cell in (*names, data_type, meaning)), "|")
