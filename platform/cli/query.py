"""`acs query`: one SELECT on a copy of the views, run where it can do no harm."""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.output import example, print_cells, to_json
from acs.platform.settings import Settings


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "query",
        help="SQL over accounts, keys, holds, charges, usage; with or without a server",
        description="One SELECT, in DuckDB's SQL, on a copy of the views. SHOW TABLES and DESCRIBE say what there is.",
        **example('acs query "SELECT model, sum(charged_tokens) FROM charges GROUP BY model" --csv'),
    )
    parser.add_argument("sql", metavar="SELECT", help='or "-": read from standard input')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV")
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--parquet", metavar="FILE", type=Path, help="write a Parquet file")
    parser.set_defaults(handler=_query)


def _query(args: argparse.Namespace) -> int:
    from acs.platform.cli.private_views import private_views

    sql = sys.stdin.read() if args.sql == "-" else args.sql
    settings = Settings.from_environ()
    with tempfile.TemporaryFile() as result:
        with private_views(settings) as private:
            private.views.close()  # its file is the child's now
            _run(settings, private.file, sql, result)
        result.seek(0)
        _print(result, args)
    return 0


def _run(settings: Settings, file: Path, sql: str, result: IO[bytes]) -> None:
    """Raises CommandFailed."""
    limits = settings.limits
    bounds = [str(limits.query_memory_bytes), str(limits.query_result_bytes)]
    command = [sys.executable, "-P", "-m", "acs.storage.views.sandbox", str(file), *bounds]
    try:
        ran = subprocess.run(
            command, input=sql.encode(), stdout=result, stderr=subprocess.PIPE, timeout=limits.query_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"The query was stopped after {limits.query_s:g} s (ACS_LIMIT_QUERY_S).") from None
    said = ran.stderr.decode(errors="replace").strip().splitlines()
    if ran.returncode < 0:
        raise CommandFailed("The query was ended by the system: it needed more memory than is allowed.")
    if ran.returncode > 0:
        raise CommandFailed(said[-1] if said else "The query failed.")


def _print(result: IO[bytes], args: argparse.Namespace) -> None:
    import pyarrow as pa

    reader = pa.ipc.open_stream(result)
    columns = reader.schema.names
    if args.parquet:
        _write_parquet(reader, args.parquet)
    elif args.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(_rows(reader))
    elif args.json:
        objects = (to_json(dict(zip(columns, row, strict=True))) for row in _rows(reader))
        print("[" + next(objects, ""), *objects, sep=",\n", end="]\n")
    else:
        print_cells([columns, *(["" if value is None else value for value in row] for row in _rows(reader))])


def _rows(reader: Any) -> Iterator[list[Any]]:
    for batch in reader:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield [_shown(value) for value in row]


def _shown(value: Any) -> Any:
    """As JSON and CSV have it. Sums of whole numbers come as decimals."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case list():
            return [_shown(item) for item in value]
        case dict():
            return {name: _shown(item) for name, item in value.items()}
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def _write_parquet(reader: Any, file: Path) -> None:
    """Whole, or not at all."""
    import pyarrow.parquet as pq

    making = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        try:
            with pq.ParquetWriter(making, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
            os.replace(making, file)
        finally:
            making.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror or error}.") from None
