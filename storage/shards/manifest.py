"""What closes a harvest: `stats.json`, then `manifest.json`. Where a manifest is, everything that it names is too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from acs.storage.shards.layout import LAYOUT_VERSION, MANIFEST, STATS, Layout
from acs.storage.shards.statistics import Statistics
from acs.storage.shards.store import Store
from acs.storage.shards.writer import Shard, read_statistics


def write_stats(store: Store, layout: Layout, shards: Iterable[Shard]) -> str:
    """Returns the SHA-256 of the file. Raises FileNotFoundError when a shard is gone, and StoreUnavailable."""
    found = [Statistics.empty(layout.width) for _ in layout.layers]
    for shard in shards:
        ours = read_statistics(store, shard.name)
        found = [old.merged(new) for old, new in zip(found, ours, strict=True)]
    layers = {str(layer): one.summary() for layer, one in zip(layout.layers, found, strict=True)}
    return _put(store, STATS, {"first_tokens_left_out": True, "layers": layers})


def write_manifest(
    store: Store, layout: Layout, shards: Iterable[Shard], stats_sha256: str, facts: Mapping[str, Any]
) -> str:
    """To be called last. `facts`: what else is to be known of the harvest. Returns the SHA-256 of the file. Raises
    StoreUnavailable.
    """
    shards = list(shards)
    manifest = {
        "layout_version": LAYOUT_VERSION,
        **layout.provenance,
        **facts,
        "layers": list(layout.layers),
        "width": layout.width,
        "n_rows": sum(shard.rows for shard in shards),
        "stats": {"file": STATS, "sha256": stats_sha256},
        "shards": [
            {"file": shard.name, "rows": shard.rows, "bytes": shard.bytes, "sha256": shard.sha256} for shard in shards
        ],
    }
    return _put(store, MANIFEST, manifest)


def sweep(store: Store, shards: Iterable[Shard]) -> list[str]:
    """Removes what is not part of a harvest that has these shards: drafts of writers that died, files of writers that
    were presumed dead. To be called when no writer of it lives. Returns what was removed. Raises StoreUnavailable.
    """
    kept = {MANIFEST, STATS, *(shard.name for shard in shards)}
    leftovers = sorted(store.sizes().keys() - kept)
    for name in leftovers:
        store.remove(name)
    return leftovers


def _put(store: Store, name: str, value: Any) -> str:
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1).encode()
    store.put(name, data)
    return hashlib.sha256(data).hexdigest()
