"""Harvests over an engine that is a fake, whose stream says which token, position and Layer it is of."""

import asyncio
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acs.platform.errors import InternalError, UpstreamServerError, VllmEngineDead
from acs.platform.harvests import reading
from acs.platform.harvests.pipeline import CHUNKS_AT_ONCE, READ_AT_ONCE, SHARDS_AT_ONCE, Pipeline, close, in_threads
from acs.platform.harvests.reading import chunks
from acs.platform.harvests.stored import StoredPlan
from acs.platform.inference.contract import Captured, Delta, EngineStatus, Failed
from acs.platform.tokenizer import ModelTokenizer
from acs.serve_apps.inference.fake_engine import FakeEngine
from acs.storage.shards.layout import Layout
from acs.storage.shards.store import FULL, Store, StoreUnavailable
from acs.storage.shards.writer import Shard

PROMPTS = [[7 * index + position for position in range(1 + index % 5)] for index in range(20)]
CUTS = [0, 3, 6, 9, 12, 15, 18, 20]
LAYERS = (0, 2)
DEAD = Failed("vllm_engine_dead", "The engine has died.")


class Harvested:
    """One harvest in a folder, as the ledger would remember it."""

    def __init__(self, folder, checkpoint, positions="all", directions=None):
        self.store = Store.at(str(folder))
        self.tokenizer = ModelTokenizer(checkpoint)
        self.engine = FakeEngine(self.tokenizer)
        self.hidden = int(self.tokenizer.config["hidden_size"])
        ids = np.array([id for prompt in PROMPTS for id in prompt], "<i4").tobytes()
        given = (None, 0) if directions is None else (directions.tobytes(), len(directions))
        self.plan = StoredPlan([*map(len, PROMPTS)], ids, CUTS, *given)
        self.layout = Layout(LAYERS, given[1] or self.hidden, {"harvest_id": "hrv_1"})
        self.positions = positions
        self.noted = {}
        self.write = in_threads(self.store, self.layout)

    async def note(self, number, shard):
        assert number not in self.noted
        self.noted[number] = shard

    async def run(self, **settings):
        texts = self.tokenizer.token_texts
        parts = self.engine, texts, self.plan, self.layout, self.positions, self.write, self.note
        self.pipeline = Pipeline(*parts, pauses_s=settings.pop("pauses_s", ()), **settings)
        await self.pipeline.run(set(self.noted))

    @property
    def table(self):
        files = [self.noted[number].file for number in sorted(self.noted)]
        return pa.concat_tables(pq.read_table(self.store.open(file)) for file in files)

    def column(self, layer):
        return self.table[f"layer_{layer}"].combine_chunks().flatten().to_numpy().reshape(-1, self.layout.width)


@pytest.fixture
def harvest(tmp_path, toy_checkpoint):
    return Harvested(tmp_path / "hrv_1", toy_checkpoint)


def stream(layer):
    """What the fake engine's stream begins with, at each token of each prompt."""
    rows = [(id, position) for ids in PROMPTS for position, id in enumerate(ids)]
    return np.array([layer / 16 + position / 4096 + id for id, position in rows], np.float32)


async def test_every_token_of_every_prompt_has_its_row_with_its_own_labels(harvest):
    await harvest.run()
    table = harvest.table
    labels = [(i, position, id) for i, ids in enumerate(PROMPTS) for position, id in enumerate(ids)]
    columns = (table[name].to_pylist() for name in ("prompt_index", "position", "token_id"))
    assert list(zip(*columns, strict=True)) == labels
    assert table["token"].to_pylist() == [harvest.tokenizer.token_texts[id] for _, _, id in labels]
    for layer in LAYERS:
        np.testing.assert_array_equal(harvest.column(layer)[:, 0], stream(layer))
    assert harvest.pipeline.tokens_read == len(labels)
    assert sum(shard.tokens for shard in harvest.noted.values()) == len(labels)


async def test_the_last_position_alone_keeps_its_own_labels(tmp_path, toy_checkpoint):
    harvest = Harvested(tmp_path / "hrv_1", toy_checkpoint, "last")
    await harvest.run()
    assert harvest.table["position"].to_pylist() == [len(ids) - 1 for ids in PROMPTS]
    assert harvest.table["token_id"].to_pylist() == [ids[-1] for ids in PROMPTS]


async def test_projected_means_are_one_row_a_prompt(tmp_path, toy_checkpoint):
    hidden = Harvested(tmp_path, toy_checkpoint).hidden
    directions = np.zeros((3, hidden), np.float32)
    directions[1, 0] = 1
    harvest = Harvested(tmp_path / "hrv_1", toy_checkpoint, "mean", directions)
    await harvest.run()
    starts = np.cumsum([0, *map(len, PROMPTS)])[:-1]
    means = np.add.reduceat(stream(2).astype(float), starts) / [*map(len, PROMPTS)]
    np.testing.assert_array_equal(harvest.column(2)[:, 1], means.astype(np.float32))
    assert not harvest.column(2)[:, 0].any()


async def test_after_a_crash_it_goes_on_with_what_is_not_noted(harvest):
    write = harvest.write

    async def crashing(number, rows):
        if number == 3:
            raise StoreUnavailable(FULL)
        return await write(number, rows)

    harvest.write = crashing
    with pytest.raises(StoreUnavailable):
        await harvest.run()
    before, asked = dict(harvest.noted), len(harvest.engine.asked)
    assert before
    assert 3 not in before
    harvest.write = write
    await harvest.run()
    assert harvest.noted.items() >= before.items()
    read_again = [id for request in harvest.engine.asked[asked:] for ids in request.prompts for id in ids]
    assert read_again == ids_of(harvest.noted.keys() - before)


def ids_of(shards):
    return [id for number in sorted(shards) for ids in PROMPTS[CUTS[number] : CUTS[number + 1]] for id in ids]


async def test_the_files_of_an_interrupted_harvest_are_those_of_an_undisturbed_one(harvest, tmp_path, toy_checkpoint):
    undisturbed = Harvested(tmp_path / "undisturbed", toy_checkpoint)
    await undisturbed.run()
    note = harvest.note

    async def crashing(number, shard):
        if number == 4:
            raise InternalError()
        await note(number, shard)

    harvest.note = crashing
    with pytest.raises(InternalError):
        await harvest.run()
    harvest.note = note
    await harvest.run()
    assert [harvest.noted[n].sha256 for n in range(7)] == [undisturbed.noted[n].sha256 for n in range(7)]


async def test_an_engine_that_dies_is_asked_again(harvest):
    harvest.engine.fail_next = DEAD
    await harvest.run(pauses_s=(0,))
    np.testing.assert_array_equal(harvest.column(2)[:, 0], stream(2))


async def test_a_model_that_takes_long_to_come_back_uses_up_no_tries(harvest, monkeypatch):
    monkeypatch.setattr(reading, "LOOK_S", 0)
    looks = iter(["down"] * 20)
    submit = harvest.engine.submit

    def status():
        return EngineStatus(next(looks, "live"))

    def while_up(request, sink):
        if status().status == "down":
            return sink(DEAD)
        return submit(request, sink)

    monkeypatch.setattr(harvest.engine, "status", status)
    monkeypatch.setattr(harvest.engine, "submit", while_up)
    await harvest.run(pauses_s=(0,))
    np.testing.assert_array_equal(harvest.column(2)[:, 0], stream(2))


@pytest.mark.parametrize("code", ["upstream_deadline", "upstream_server_error", "vllm_oom", "upstream_unreachable"])
async def test_whatever_the_engine_failed_by_it_is_asked_again(harvest, code):
    harvest.engine.fail_next = Failed(code, "It has failed.")
    await harvest.run(pauses_s=(0,))
    np.testing.assert_array_equal(harvest.column(2)[:, 0], stream(2))


@pytest.mark.parametrize(
    ("failed", "error"),
    [(DEAD, VllmEngineDead), (Failed("upstream_server_error", "The engine has failed."), UpstreamServerError)],
)
async def test_a_fault_that_stays_ends_the_harvest_with_its_own_error(harvest, failed, error):
    harvest.engine.fail_next = failed
    with pytest.raises(error):
        await harvest.run(pauses_s=())


async def test_prompts_that_an_engine_aborts_on_its_own_are_read_again(harvest, monkeypatch):
    submit = harvest.engine.submit

    def aborts(request, sink):
        monkeypatch.setattr(harvest.engine, "submit", submit)
        sink(Delta(0, [], [], None, "abort"))

    monkeypatch.setattr(harvest.engine, "submit", aborts)
    await harvest.run(pauses_s=(0,))
    np.testing.assert_array_equal(harvest.column(2)[:, 0], stream(2))


async def test_a_capture_that_is_short_of_a_row_is_an_error(harvest, monkeypatch):
    def short(request, index, ids):
        shape = len(request.capture), len(ids) - 1, harvest.hidden
        return Captured(index, shape, "float32", memoryview(bytes(4 * shape[0] * shape[1] * shape[2])))

    monkeypatch.setattr(harvest.engine, "_captured", short)
    with pytest.raises(InternalError):
        await harvest.run()
    assert harvest.noted == {}


async def test_reading_waits_for_writing(harvest, until):
    written = asyncio.Event()
    waiting = []
    write = harvest.write

    async def slow(number, rows):
        waiting.append(number)
        await written.wait()
        return await write(number, rows)

    harvest.write = slow
    running = asyncio.create_task(harvest.run())
    await until(lambda: len(waiting) == SHARDS_AT_ONCE and harvest.engine.status().running == 0)
    assert sum(len(request.prompts) for request in harvest.engine.asked) == CUTS[SHARDS_AT_ONCE]
    written.set()
    await running
    assert sorted(harvest.noted) == list(range(len(CUTS) - 1))


async def test_the_engine_is_given_few_chunks_at_a_time_and_none_above_its_size(harvest):
    most = 0
    submit = harvest.engine.submit

    def counting(request, sink):
        nonlocal most
        submit(request, sink)
        most = max(most, len(harvest.engine._running))

    harvest.engine.submit = counting
    await harvest.run(chunk_tokens=4)
    assert most == READ_AT_ONCE
    assert all(sum(map(len, r.prompts)) <= 4 or len(r.prompts) == 1 for r in harvest.engine.asked)


async def test_cancelled_it_leaves_nothing_running_in_the_engine_or_on_the_disk(harvest, until):
    harvest.engine.step_s = 0.01
    running = asyncio.create_task(harvest.run(chunk_tokens=1))
    await until(lambda: any(name.endswith(".draft") for name in harvest.store.sizes()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not [name for name in harvest.store.sizes() if not name.endswith(".parquet")]
    await until(lambda: harvest.engine.status().running == 0)


async def test_a_shard_is_written_while_the_rest_of_it_is_read(harvest, until):
    harvest.plan.cuts[1:-1] = []
    taken = []
    write = harvest.write

    async def watched(number, rows):
        def watching():
            for row in rows:
                taken.append(row.prompt_index)
                yield row

        return await write(number, watching())

    harvest.write = watched
    running = asyncio.create_task(harvest.run(chunk_tokens=1))
    submit = harvest.engine.submit
    held = []
    harvest.engine.submit = lambda request, sink: held.append((request, sink))
    await until(lambda: len(held) == READ_AT_ONCE)
    submit(*held.pop(0))
    await until(lambda: taken == [0])
    harvest.engine.submit = submit
    for each in held:
        submit(*each)
    await running
    assert taken == list(range(len(PROMPTS)))


async def test_of_one_large_shard_few_chunks_wait_for_their_writer(harvest, until):
    harvest.plan.cuts[1:-1] = []
    written = asyncio.Event()
    write = harvest.write

    async def slow(number, rows):
        await written.wait()
        return await write(number, rows)

    harvest.write = slow
    running = asyncio.create_task(harvest.run(chunk_tokens=1))
    await until(lambda: len(harvest.engine.asked) == CHUNKS_AT_ONCE and harvest.engine.status().running == 0)
    await until(lambda: harvest.pipeline.tokens_read == sum(map(len, PROMPTS[:CHUNKS_AT_ONCE])))
    assert len(harvest.engine.asked) == CHUNKS_AT_ONCE
    written.set()
    await running
    assert sorted(harvest.noted) == [0]


async def test_a_disk_that_fills_up_in_the_middle_of_a_shard_ends_the_harvest(harvest):
    harvest.plan.cuts[1:-1] = []

    async def full(number, rows):
        await asyncio.to_thread(next, iter(rows))
        raise StoreUnavailable(FULL)

    harvest.write = full
    with pytest.raises(StoreUnavailable):
        await harvest.run(chunk_tokens=1)
    assert harvest.engine.status().running == 0


async def test_when_all_shards_are_noted_the_manifest_closes_the_harvest_and_leftovers_go(harvest):
    harvest.store.put("shard-00000-00000000.parquet", b"of a writer that was presumed dead")
    await harvest.run()
    noted = [harvest.noted[number] for number in sorted(harvest.noted)]
    shards = [Shard(one.file, one.rows, one.bytes, one.sha256) for one in noted]
    close(harvest.store, harvest.layout, shards, {"n_prompts": len(PROMPTS)})
    manifest = json.loads(harvest.store.read("manifest.json"))
    assert [entry["file"] for entry in manifest["shards"]] == [one.file for one in noted]
    assert harvest.store.sizes().keys() == {*(one.file for one in noted), "manifest.json", "stats.json"}


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([1], [range(1)]),
        ([3, 3, 3], [range(1), range(1, 2), range(2, 3)]),
        ([2, 2, 9, 1, 4], [range(2), range(2, 3), range(3, 5)]),
    ],
)
def test_chunks_have_every_prompt_once_in_order(lengths, found):
    assert chunks(lengths, 5) == found
