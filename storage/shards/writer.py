"""Writes one Parquet shard: from prompts' rows, as the engine made them, to a durable file under its own hash.

float32 holds every bfloat16 exactly; split by bytes and compressed it takes less room than the bfloat16 did, since the
low bytes are zero. At most one row group is in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from acs.storage.shards import statistics
from acs.storage.shards.layout import Layout, shard_name
from acs.storage.shards.statistics import Statistics
from acs.storage.shards.store import Store

GROUP_ROWS = 8192
GROUP_BYTES = 128 * 2**20
STATISTICS_KEY = b"acs.statistics"


@dataclass(frozen=True, slots=True)
class PromptRows:
    """What is kept of one prompt.

    values: [layers, rows, width], of float32, or of uint16 that are the bits of bfloat16. `positions`, `token_ids`,
    `tokens`: one a row; None: the one row stands for the whole prompt.
    """

    prompt_index: int
    values: NDArray[Any]
    positions: NDArray[np.int32] | None
    token_ids: NDArray[np.int32] | None
    tokens: list[str] | None

    @property
    def rows(self) -> int:
        return int(self.values.shape[1])

    def part(self, start: int, end: int) -> PromptRows:
        if self.positions is None or self.token_ids is None or self.tokens is None:
            return self
        rows = slice(start, end)
        labels = self.positions[rows], self.token_ids[rows], self.tokens[rows]
        return PromptRows(self.prompt_index, self.values[:, rows], *labels)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file that is complete and on disk."""

    name: str
    rows: int
    bytes: int
    sha256: str


def write_shard(
    store: Store, layout: Layout, number: int, prompts: Iterable[PromptRows], group_bytes: int = GROUP_BYTES
) -> Shard:
    """The shard `number` of a harvest, from 0. Raises StoreUnavailable; then nothing of it is left."""
    most = max(1, min(GROUP_ROWS, group_bytes // layout.row_bytes))
    found = [Statistics.empty(layout.width) for _ in layout.layers]
    rows = 0
    with store.draft() as (draft, file):
        hashing = _Hashing(file)
        with _parquet(hashing, layout) as parquet:
            for group in _groups(prompts, most):
                values = _widened(group, layout)
                parquet.write_table(_table(group, values, layout), row_group_size=most)
                counted = np.concatenate([_counted(part) for part in group])
                found = [old.merged(Statistics.of(new[counted])) for old, new in zip(found, values, strict=True)]
                rows += values.shape[1]
            parquet.add_key_value_metadata({STATISTICS_KEY: statistics.encode(found)})
    sha256 = hashing.sha256.hexdigest()
    store.publish(draft, name := shard_name(number, sha256))
    return Shard(name, rows, hashing.size, sha256)


def read_statistics(store: Store, shard: str) -> list[Statistics]:
    """Of each Layer, as they stand in the shard itself. Raises FileNotFoundError and StoreUnavailable."""
    with store.open(shard) as file:
        return statistics.decode(pq.read_metadata(file).metadata[STATISTICS_KEY])


def _parquet(file: Any, layout: Layout) -> pq.ParquetWriter:
    labels = ["prompt_index", "position", "token_id", "token"]
    return pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        layout.schema,
        compression="zstd",
        compression_level=1,  # level 3 made larger files in more time
        use_dictionary=labels,
        column_encoding={f"{column}.list.element": "BYTE_STREAM_SPLIT" for column in layout.columns},
        write_statistics=labels,
    )


def _groups(prompts: Iterable[PromptRows], most: int) -> Iterator[list[PromptRows]]:
    """The prompts' rows in their order, `most` rows at a time; a prompt may be cut."""
    group: list[PromptRows] = []
    room = most
    for prompt in prompts:
        start = 0
        while start < prompt.rows:
            part = prompt.part(start, start + room)
            group.append(part)
            start, room = start + part.rows, room - part.rows
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


def _widened(group: list[PromptRows], layout: Layout) -> NDArray[np.float32]:
    """[layers, rows, width]"""
    values = np.empty((len(layout.layers), sum(part.rows for part in group), layout.width), np.float32)
    end = 0
    for part in group:
        start, end = end, end + part.rows
        target = values[:, start:end]
        if part.values.dtype == np.uint16:
            np.left_shift(part.values, 16, out=target.view(np.uint32), dtype=np.uint32)
        else:
            target[:] = part.values
    return values


def _table(group: list[PromptRows], values: NDArray[np.float32], layout: Layout) -> pa.Table:
    indices = np.repeat([part.prompt_index for part in group], [part.rows for part in group])
    labels = (
        pa.array(indices, pa.int32()),
        pa.concat_arrays([_labels(part, part.positions, pa.int32()) for part in group]),
        pa.concat_arrays([_labels(part, part.token_ids, pa.int32()) for part in group]),
        pa.concat_arrays([_labels(part, part.tokens, pa.string()) for part in group]),
    )
    numbers = (pa.FixedSizeListArray.from_arrays(pa.array(one.reshape(-1)), type=layout.numbers) for one in values)
    return pa.Table.from_arrays([*labels, *numbers], schema=layout.schema)


def _labels(part: PromptRows, labels: Any, kind: pa.DataType) -> pa.Array:
    return pa.nulls(part.rows, kind) if labels is None else pa.array(labels, kind)


def _counted(part: PromptRows) -> NDArray[np.bool_]:
    """Which rows the statistics are of: all but a prompt's first token."""
    return np.ones(part.rows, bool) if part.positions is None else part.positions != 0


@dataclass(slots=True)
class _Hashing:
    """Passes bytes on and hashes them on the way: the file is not read again."""

    file: Any
    size: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)
    closed: bool = False

    def write(self, data: Any) -> int:
        written = memoryview(data).nbytes
        self.sha256.update(data)
        self.file.write(data)
        self.size += written
        return written

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """The draft is flushed when it is closed."""

    def close(self) -> None:
        """The draft is closed by whoever opened it."""
        self.closed = True
