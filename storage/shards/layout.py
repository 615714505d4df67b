"""What a shard looks like, and what it is called. Layout version 1.

One row a token: `prompt_index`, `position`, `token_id`, `token`, then a column a Layer, `layer_8`, `layer_16`, …, each
a fixed-size list of float32. A row that stands for a whole prompt (its mean) has no position and no token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

LAYOUT_VERSION = 1
MANIFEST, STATS = "manifest.json", "stats.json"
SHARD = re.compile(r"shard-\d{5}-[0-9a-f]{8}\.parquet", re.ASCII)

_DRAFT = ".draft"


@dataclass(frozen=True, slots=True)
class Layout:
    """The same for all shards of a harvest."""

    layers: tuple[int, ...]  # ascending
    width: int  # numbers a Layer and row: the hidden size, or so many projections
    provenance: Mapping[str, str]  # goes into every file

    @property
    def row_bytes(self) -> int:
        """Of the numbers of one row, as float32."""
        return len(self.layers) * self.width * 4

    @property
    def columns(self) -> list[str]:
        """Those of the Layers."""
        return [f"layer_{layer}" for layer in self.layers]

    @property
    def numbers(self) -> pa.DataType:
        """Of a Layer's column. A list that says it has no gaps is encoded in two thirds of the time."""
        return pa.list_(pa.field("element", pa.float32(), nullable=False), self.width)

    @property
    def schema(self) -> pa.Schema:
        labels = [("prompt_index", pa.int32()), ("position", pa.int32()), ("token_id", pa.int32())]
        numbers = [pa.field(column, self.numbers, nullable=False) for column in self.columns]
        return pa.schema(
            [*labels, ("token", pa.string()), *numbers],
            metadata={f"acs.{name}": text for name, text in self.provenance.items()},
        )


def shard_name(number: int, sha256: str) -> str:
    """`number`: of the shard in its harvest, from 0. Two writers of one shard meet in one name only with the same
    bytes, so one that was presumed dead cannot overwrite what the other has committed.
    """
    return f"shard-{number:05}-{sha256[:8]}.parquet"


def draft_name() -> str:
    """Of a file that is still being written: another each time, and nothing that `*.parquet` or `*.json` matches."""
    return f"{secrets.token_hex(16)}{_DRAFT}"


def is_draft(name: str) -> bool:
    return name.endswith(_DRAFT)
