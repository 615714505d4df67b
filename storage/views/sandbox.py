"""`python -m acs.storage.views.sandbox FILE MEMORY_BYTES RESULT_BYTES`: somebody's SELECT, on a copy of the views.

The SQL comes on standard input; the rows go to standard output as an Arrow stream; what is wrong with it is one
sentence on standard error and exit status 1. What the SQL may not do, the process it runs in cannot: DuckDB opens the
copy for reading, without files, network or extensions, and its configuration is locked; the process itself may write
nothing larger than the result and take no more memory than allowed. Whoever starts it bounds its time.
"""

from __future__ import annotations

import resource
import signal
import sys
from typing import Any

import duckdb
import pyarrow as pa

BATCH_ROWS = 10_000
OWN_BYTES = 4 * 1024**3  # address space of Python and DuckDB before the first row; most of it is never touched


def main(file: str, memory_bytes: int, result_bytes: int) -> int:
    sql = sys.stdin.read()
    connection = duckdb.connect(file, read_only=True)
    for name, value in {
        "threads": 2,
        "memory_limit": f"{memory_bytes}B",
        "temp_directory": "",  # what does not fit into memory is not written to the disk either
        "allow_community_extensions": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "enable_external_access": False,
        "lock_configuration": True,  # the last: nothing can be changed any more
    }.items():
        connection.execute(f"SET {name} = {value!r}")
    resource.setrlimit(resource.RLIMIT_AS, (OWN_BYTES + 2 * memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (result_bytes, result_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an OSError instead
    try:
        _write(connection.sql(the_select(connection, sql)).to_arrow_reader(BATCH_ROWS))
    except (NotOneSelect, ResultTooLarge) as error:
        return _say(str(error))
    except (duckdb.OutOfMemoryException, MemoryError):
        return _say(f"The query needs more memory than {memory_bytes:,} bytes.")
    except duckdb.Error as error:
        return _say(_first_sentence(str(error)))
    return 0


def the_select(connection: Any, sql: str) -> Any:
    """Raises NotOneSelect, and duckdb.ParserException."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise NotOneSelect(f"One SELECT is taken; this is {len(statements) or 'no'} statements.")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise NotOneSelect(f"Only a SELECT is taken; this is {statements[0].type.name.replace('_', ' ')}.")
    return statements[0]


def _write(rows: pa.RecordBatchReader) -> None:
    """Raises ResultTooLarge."""
    try:
        with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
            for batch in rows:
                stream.write_batch(batch)
        sys.stdout.buffer.flush()
    except OSError:
        raise ResultTooLarge("The result is larger than allowed; ask for fewer rows or columns.") from None


def _first_sentence(message: str) -> str:
    """DuckDB's own, without its kind and the picture of the place."""
    return message.split("\n")[0].partition(": ")[2] or message


def _say(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1


class NotOneSelect(Exception):
    pass


class ResultTooLarge(Exception):
    pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
