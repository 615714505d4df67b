"""The way of a request from an ingress to a replica and back, over real sockets, with a fake engine at the end."""

import asyncio
import contextlib

import pytest

from acs.platform import frames
from acs.platform.inference import wire
from acs.platform.inference.contract import (
    Delta,
    EngineStatus,
    Failed,
    FullVocabularyRows,
    Generate,
    Sampling,
)
from acs.platform.inference.remote import RemoteEngine
from acs.platform.tokenizer import ModelTokenizer
from acs.serve_apps.inference.fake_engine import FakeEngine
from acs.serve_apps.inference.server import EngineServer

SECRET = "s" * 64


class Replicas:
    """A directory of replicas that a test starts and kills."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.servers = {}
        self.engines = {}
        self.woken = 0

    async def start(self):
        engine = FakeEngine(self.tokenizer)
        server = EngineServer(engine)
        address = ("127.0.0.1", await server.start("127.0.0.1", SECRET))
        self.servers[address], self.engines[address] = server, engine
        return engine

    async def directory(self):
        return {address: engine.status() for address, engine in self.engines.items()}

    async def wake(self):
        self.woken += 1
        await self.start()

    def kill(self):
        """All of them, as a lost host would: every connection breaks."""
        for server in self.servers.values():
            for peer in list(server._running):
                peer.close()
            server._server.close()
        self.servers.clear()
        self.engines.clear()


@pytest.fixture
async def replicas(toy_checkpoint):
    replicas = Replicas(ModelTokenizer(toy_checkpoint))
    yield replicas
    replicas.kill()


def remote(replicas, *, scales_to_zero=False, secret=SECRET):
    return RemoteEngine(replicas.directory, replicas.wake, secret, scales_to_zero=scales_to_zero)


def generate(request_id="r", *, n=1, max_tokens=3, **fields):
    return Generate(request_id, [[1, 2, 3]], n, Sampling(max_tokens=max_tokens), **fields)


async def ended(engine, request):
    """Every Piece of the request, once it has ended."""
    pieces, done = [], asyncio.Event()

    def sink(piece):
        pieces.append(piece)
        finished = [p for p in pieces if isinstance(p, Delta) and p.finish_reason]
        if isinstance(piece, Failed) or len(finished) == len(request.prompts) * request.n:
            done.set()

    engine.submit(request, sink)
    async with asyncio.timeout(10):
        await done.wait()
    return pieces


async def test_a_request_comes_back_whole(replicas):
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    (delta,) = await ended(engine, generate())
    assert (delta.index, len(delta.token_ids), delta.finish_reason) == (0, 3, "length")


async def test_a_stream_of_many_choices_comes_back_token_by_token(replicas):
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    pieces = await ended(engine, generate(n=100, stream=True))
    assert sorted({piece.index for piece in pieces}) == list(range(100))
    assert len(pieces) == 300


async def test_whole_vocabulary_rows_arrive_before_the_end(replicas):
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    *rows, last = await ended(engine, generate(prompt_logprobs=-1))
    assert [row.first for row in rows if isinstance(row, FullVocabularyRows)] == [1, 2]
    assert isinstance(last, Delta)


async def test_an_abort_ends_the_request_in_the_engine(replicas, until):
    fake = await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    pieces = []
    engine.submit(generate(max_tokens=10**9), pieces.append)
    await until(lambda: fake.status().running == 1)
    engine.abort("r")
    await until(lambda: pieces)
    assert [piece.finish_reason for piece in pieces] == ["abort"]
    assert fake.status().running == 0


async def test_an_ingress_that_dies_takes_its_requests_with_it(replicas, until):
    fake = await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    engine.submit(generate(max_tokens=10**9), lambda piece: None)
    await until(lambda: fake.status().running == 1)
    next(iter(engine._replicas.values())).link.close()
    await until(lambda: fake.status().running == 0)


async def test_a_replica_that_dies_fails_its_requests_retryably_and_the_next_ones_until_another_runs(replicas, until):
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    pieces = []
    engine.submit(generate(max_tokens=10**9), pieces.append)
    await until(lambda: any(server.running for server in replicas.servers.values()))
    replicas.kill()
    await until(lambda: pieces)
    assert [piece.code for piece in pieces] == ["vllm_engine_dead"]
    await engine.refresh()
    assert [piece.code for piece in await ended(engine, generate("again"))] == ["vllm_engine_dead"]
    assert engine.status() == EngineStatus("down")
    await replicas.start()
    await engine.refresh()
    assert isinstance((await ended(engine, generate("once more")))[-1], Delta)


async def test_a_model_at_zero_wakes_for_a_request_and_answers_it(replicas):
    engine = remote(replicas, scales_to_zero=True)
    await engine.refresh()
    assert engine.status().status == "cold"
    assert isinstance((await ended(engine, generate()))[-1], Delta)
    assert replicas.woken == 1


async def test_a_peer_without_the_secret_is_cut_off(replicas, until):
    fake = await replicas.start()
    (address,) = replicas.servers
    lost = []
    link = await wire.connect(*address, "wrong", lambda link, pieces: None, lost.append)
    link.send(wire.Submit(generate()))
    await until(lambda: lost)
    assert fake.asked == []


async def test_requests_go_to_the_replica_with_the_fewest_choices(replicas, until):
    engines = [await replicas.start(), await replicas.start()]
    engine = remote(replicas)
    await engine.refresh()
    for number in range(10):
        engine.submit(generate(f"r{number}", max_tokens=10**9), lambda piece: None)
    await until(lambda: sum(len(fake.asked) for fake in engines) == 10)
    assert [len(fake.asked) for fake in engines] == [5, 5]
    for number in range(10):
        engine.abort(f"r{number}")


async def test_what_begins_alike_goes_to_the_same_replica_while_it_is_not_much_busier(replicas, until):
    engines = [await replicas.start() for _ in range(3)]
    engine = remote(replicas)
    await engine.refresh()
    paths = [[number] * 200 for number in range(6)]
    for depth in range(3):
        for number, path in enumerate(paths):
            prompt = path + list(range(50 * depth))
            await ended(engine, Generate(f"{number}-{depth}", [prompt], 2, Sampling(max_tokens=1)))
    for path in paths:
        readers = [sum(asked.prompts[0][:200] == path for asked in one.asked) for one in engines]
        assert sorted(readers) == [0, 0, 3]
    for one in engines:
        one.step_s = 60
    for number in range(24):
        engine.submit(Generate(f"much-{number}", [paths[0]], 2, Sampling(max_tokens=1)), lambda piece: None)
    await until(lambda: sum(len(one.asked) for one in engines) == 18 + 24)
    loads = sorted(one.status().running for one in engines)
    assert loads[-1] - loads[0] <= 16 + 2


async def test_what_is_too_much_for_one_frame_travels_in_several_and_in_order(replicas, monkeypatch):
    """As when a thousand long choices with log probabilities end in one step of the engine."""
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 2000)
    pieces = await ended(engine, generate(n=100, logprobs=5))
    assert [piece.index for piece in pieces] == list(range(100))
    assert {(len(piece.token_ids), piece.finish_reason) for piece in pieces} == {(3, "length")}


async def test_one_thing_that_is_longer_than_a_frame_arrives_whole(replicas, monkeypatch):
    await replicas.start()
    engine = remote(replicas)
    await engine.refresh()
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 1000)
    captured, delta = await ended(engine, generate(capture=[0, 2]))
    ids = [1, 2, 3, *delta.token_ids[:-1]]
    assert len(captured.data) > 2 * 1000
    assert captured.data == FakeEngine(replicas.tokenizer)._captured(generate(capture=[0, 2]), 0, ids).data


async def test_a_stranger_cannot_make_a_replica_keep_a_large_frame(replicas):
    await replicas.start()
    (address,) = replicas.servers
    reader, writer = await asyncio.open_connection(*address)
    writer.write((frames.HELLO_BYTES_MAX + 1).to_bytes(4, "little"))
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_replica_that_is_listed_but_not_reached_delays_neither_the_others_nor_the_event_loop(replicas):
    await replicas.start()
    listed = replicas.directory

    async def with_a_dead_one():
        return {("127.0.0.1", 9): EngineStatus("live"), **await listed()}

    replicas.directory = with_a_dead_one
    engine = remote(replicas)
    await engine.refresh()
    assert isinstance((await ended(engine, generate()))[-1], Delta)


async def test_a_replica_that_is_listed_again_is_used_again(replicas):
    """Serve may leave a replica out of one list and have it in the next."""
    fake = await replicas.start()
    listed = replicas.directory
    engine = remote(replicas)
    await engine.refresh()

    async def nothing():
        return {}

    engine._directory = nothing
    await engine.refresh()
    assert engine.status().status == "down"
    engine._directory = listed
    await engine.refresh()
    assert isinstance((await ended(engine, generate()))[-1], Delta)
    assert len(fake.asked) == 1
