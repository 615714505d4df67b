import hashlib
import json

import numpy as np
import pytest
from made_shards import PROVENANCE, layout, prompt, prompts

from acs.storage.shards.manifest import sweep, write_manifest, write_stats
from acs.storage.shards.writer import write_shard


@pytest.fixture
def shards(store):
    values = np.random.default_rng(0).normal(0, 1, (4, 2, 9, 5)).astype(np.float32)
    return [write_shard(store, layout(), number, [prompt(number, one)]) for number, one in enumerate(values)]


def test_the_manifest_names_every_file_with_its_hash_and_adds_up(store, shards):
    stats = write_stats(store, layout(), shards)
    sha256 = write_manifest(store, layout(), shards, stats, {"n_prompts": 4, "n_tokens": 36})
    data = store.read("manifest.json")
    manifest = json.loads(data)
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert manifest.items() >= PROVENANCE.items()
    assert (manifest["layout_version"], manifest["layers"], manifest["width"]) == (1, [0, 2], 5)
    assert (manifest["n_prompts"], manifest["n_rows"]) == (4, 36)
    for entry in (*manifest["shards"], manifest["stats"]):
        assert hashlib.sha256(store.read(entry["file"])).hexdigest() == entry["sha256"]


def test_the_statistics_are_of_all_shards(store, shards):
    write_stats(store, layout(), shards)
    stats = json.loads(store.read("stats.json"))
    assert stats["first_tokens_left_out"] is True
    assert {layer: one["rows"] for layer, one in stats["layers"].items()} == {"0": 32, "2": 32}
    assert len(stats["layers"]["2"]["std"]) == 5


def test_the_sweep_removes_what_is_not_of_the_harvest_and_nothing_else(store, shards):
    write_manifest(store, layout(), shards, write_stats(store, layout(), shards), {})
    before = store.sizes()
    stray = write_shard(store, layout(), 2, prompts([9], seed=1))
    with store.draft() as (draft, file):
        file.write(b"half a sha")
    assert sweep(store, shards) == sorted([draft, stray.name])
    assert store.sizes() == before
    assert sweep(store, shards) == []
