"""`acs export`: the events and the views as Parquet files, for any DuckDB."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.output import add_json, example, print_json, print_table
from acs.platform.settings import Settings

PAGE_EVENTS = 20_000  # a row group


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="events and views as Parquet; with or without a server",
        **example(
            "acs export history && duckdb -c \"SELECT status, count(*) FROM 'history/holds.parquet' GROUP BY 1\""
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="made by this; must not be there yet")
    add_json(parser)
    parser.set_defaults(handler=_export)


def _export(args: argparse.Namespace) -> int:
    folder = args.folder.absolute()
    if folder.exists():
        raise CommandFailed(f"{folder} is there already; name a folder that is not.")
    try:
        making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            rows = _write(Settings.from_environ(), making)
            os.rename(making, folder)  # whole, or not at all
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise CommandFailed(f"{folder} cannot be written: {error.strerror}.") from None
    if args.json:
        print_json(rows)
    else:
        print_table(("file", "rows"), [[str(args.folder / name), f"{count:,}"] for name, count in rows.items()])
    return 0


def _write(settings: Settings, folder: Path) -> dict[str, int]:
    """Rows by file."""
    from acs.platform.cli.private_views import private_views
    from acs.storage.views.schema import TABLES

    with private_views(settings) as private:
        rows = {"events.parquet": _write_events(private.store, private.views.position, folder / "events.parquet")}
        with private.views.cursor() as cursor:
            for table in TABLES:
                copy = f"COPY (FROM {table} ORDER BY ALL) TO $file (FORMAT parquet, COMPRESSION zstd)"
                cursor.execute(copy, {"file": str(folder / f"{table}.parquet")})
                rows[f"{table}.parquet"] = cursor.fetchall()[0][0]
    return rows


def _write_events(store: Any, until: int, file: Path) -> int:
    """Columns: what every event has; `data`, the rest of its fields as JSON. The events up to position `until`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from acs.platform.event_lines import EventLines

    ids = ("account_id", "key_id", "hold_id")
    schema = pa.schema(
        [("position", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("kind", pa.string())]
        + [(name, pa.string()) for name in (*ids, "data")]
    )
    lines, page, written = EventLines(), [], 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for position, event in store.read_log(0):
            if position > until:
                break
            line = lines.line(position, event)
            row = {name: line.pop(name, None) for name in ("position", "at", "kind", *ids)}
            page.append({**row, "at": event.timestamp, "data": json.dumps(line, ensure_ascii=False)})
            if len(page) == PAGE_EVENTS:
                writer.write_table(pa.Table.from_pylist(page, schema=schema))
                written, page = written + len(page), []
        writer.write_table(pa.Table.from_pylist(page, schema=schema))
    return written + len(page)
