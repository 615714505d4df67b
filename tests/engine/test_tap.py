"""The tap and steering in the real engine, against Transformers on the same weights in float32."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from engine.reference import Reference
from engine.running import Answer, Running, request, start, toy

from acs.platform.inference.contract import Generate, Sampling, Steering
from acs.platform.server import processes
from acs.serve_apps.inference.tap.choices import TappedModel
from acs.serve_apps.inference.tap.self_test import SelfTest, SelfTestFailed

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TOLERANCE = 1e-5  # of the largest value of a row, in float32: the same sums in another order
LOGPROB_TOLERANCE = 1e-4
CHUNK = 64  # tokens a step
BLOCKS = 18  # of 128 tokens: the whole context and little more
ALL = [0, 1, 2, 3]
CONTEXT = 2048


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    model = toy(max_num_batched_tokens=CHUNK, num_gpu_blocks_override=BLOCKS)
    running = await start(model, toy_checkpoint, tmp_path_factory.mktemp("tensors"))
    yield running
    running.engine.shutdown()


@pytest.fixture(scope="module")
def reference(toy_checkpoint: Path) -> Reference:
    return Reference(toy_checkpoint)


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(1000 * length + seed)
    return [draw.randrange(2, 2048) for _ in range(length)]


def vector(*layers: int, scale: float = 1.0, seed: int = 0, positions: list[int] | None = None, **fields) -> Steering:
    rows = 1 if positions is None else len(positions)
    values = np.random.RandomState(seed).standard_normal((len(layers), rows, 128)).astype("<f4")
    return Steering(list(layers), values.tobytes(), scale, positions=positions, **fields)


def assert_right(answer: Answer, reference: Reference) -> None:
    """Each choice's captures and log probabilities are those of Transformers on the same tokens."""
    asked = answer.request
    assert answer.failed is None, answer.failed
    for index, choice in enumerate(answer.choices):
        ids = asked.prompts[index // asked.n]
        forward = reference.forward(ids + choice.token_ids[:-1], asked.steering)
        if asked.capture:
            expected = forward.stream[asked.capture]
            assert choice.captured is not None
            assert choice.captured.shape == expected.shape
            error = np.abs(choice.captured - expected).max(-1) / np.abs(expected).max(-1)
            assert error.max() < TOLERANCE
        if asked.logprobs is not None:
            expected = forward.logprobs[np.arange(len(ids) - 1, len(ids) - 1 + len(choice.token_ids)), choice.token_ids]
            assert np.abs(expected - choice.logprobs).max() < LOGPROB_TOLERANCE


# -- reading


@pytest.mark.parametrize("length", [1, 2, CHUNK, CHUNK + 1, 3 * CHUNK + 5, CONTEXT - 20])
async def test_every_layer_at_every_position_is_that_of_transformers(engine: Running, reference, length):
    answer = await engine.run(request(prompt(length), 20, capture=ALL, logprobs=0))
    assert answer.choice.captured.shape == (4, length + 19, 128)
    assert_right(answer, reference)


async def test_a_prompt_of_the_whole_context(engine: Running, reference):
    assert_right(await engine.run(request(prompt(CONTEXT - 1), 1, capture=[0, 3])), reference)


@pytest.mark.parametrize("layers", [[0], [3], [1, 2], [0, 3]])
async def test_only_the_wanted_layers_come_in_ascending_order(engine: Running, reference, layers):
    assert_right(await engine.run(request(prompt(9), capture=layers)), reference)


async def test_what_the_prefix_cache_holds_is_read_all_the_same(engine: Running, reference):
    ids = prompt(300)
    plain = await engine.together([request(ids, logprobs=0), request(ids, logprobs=0)])
    captured = await engine.run(request(ids, capture=ALL, logprobs=0))
    assert_right(captured, reference)
    for answer in plain:
        assert_right(answer, reference)


async def test_what_is_only_captured_is_right_and_nobody_reads_what_it_has_cached(engine: Running, reference):
    ids = prompt(300)
    alone = await engine.run(request([ids, prompt(70)], 1, capture=[0, 1], only_capture=True))
    assert_right(alone, reference)
    assert_right(await engine.run(request(ids, 4, logprobs=0)), reference)
    only = [
        request(prompt(length), 1, capture=[layer], only_capture=True) for layer, length in enumerate((90, 20, 150))
    ]
    for answer in await engine.together([*only, request(prompt(140), 8, logprobs=0), request(ids, 3, capture=ALL)]):
        assert_right(answer, reference)


async def test_each_choice_of_each_prompt_is_captured(engine: Running, reference):
    sampling = Sampling(6, temperature=1.0, seed=3, ignore_eos=True)
    answer = await engine.run(request([prompt(140), prompt(3)], n=3, sampling=sampling, capture=[1, 3]))
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 6
    assert_right(answer, reference)


async def test_a_choice_that_a_stop_string_ended_has_rows_up_to_its_last_token(engine: Running, reference):
    free = await engine.run(request(prompt(5), 12))
    stop = free.pieces[0].texts[0][4]
    sampling = Sampling(12, temperature=0.0, stop=[stop], ignore_eos=True)
    answer = await engine.run(request(prompt(5), sampling=sampling, capture=ALL))
    assert answer.choice.finish_reason == "stop"
    assert answer.choice.captured.shape[1] == 5 + len(answer.choice.token_ids) - 1
    assert_right(answer, reference)


async def test_a_seed_draws_the_same_tokens_after_a_prompt_of_many_steps(engine: Running):
    sampling = Sampling(8, temperature=1.0, seed=5, ignore_eos=True)
    alone, *beside = await engine.together([request(prompt(400), sampling=sampling) for _ in range(3)])
    again = await engine.run(request(prompt(400), sampling=sampling))
    assert {tuple(answer.choice.token_ids) for answer in (alone, again, *beside)} == {tuple(alone.choice.token_ids)}


# -- steering

MODES = {
    "every position": [vector(1)],
    "several Layers": [vector(0, 2, 3, scale=-1.5)],
    "the last Layer": [vector(3, scale=4.0)],
    "some positions of the prompt and some generated": [vector(1, positions=[0, 3, 70, 71, 72, 80])],
    "positions that never come": [vector(2, positions=[500])],
    "norm_match": [vector(1, scale=0.5, norm_match=True)],
    "norm_match at positions": [vector(2, positions=[2, 5, 74], norm_match=True)],
    "norm_match with a row of zeros": [Steering([1], np.zeros((1, 1, 128), "<f4").tobytes(), norm_match=True)],
    "several vectors at one Layer": [vector(1, seed=1), vector(1, 2, seed=2, norm_match=True), vector(1, seed=3)],
    "a vector beside one at positions": [vector(1, positions=[3, 4], seed=1), vector(1, seed=2, scale=0.25)],
}


@pytest.mark.parametrize("mode", MODES)
async def test_a_steered_request_is_transformers_with_the_vectors_added(engine: Running, reference, mode):
    asked = request(prompt(70), 8, capture=ALL, steering=MODES[mode], logprobs=0)
    assert_right(await engine.run(asked), reference)


async def test_the_choices_of_a_steered_request_share_its_vectors_and_its_cache(engine: Running, reference):
    sampling = Sampling(4, temperature=1.0, seed=1, ignore_eos=True)
    asked = request(prompt(300), n=12, sampling=sampling, steering=[vector(1), vector(2, norm_match=True)], logprobs=0)
    assert_right(await engine.run(asked), reference)


async def test_a_steered_stream_is_steered_from_its_first_token(engine: Running, reference):
    asked = request(prompt(150), 10, steering=[vector(1)], logprobs=0, stream=True)
    answer = await engine.run(asked)
    assert len(answer.pieces) == 10
    assert_right(answer, reference)


async def test_nobody_reads_what_a_steered_request_has_cached(engine: Running):
    ids = prompt(260, seed=7)
    fresh = await engine.run(request(ids, logprobs=0))
    steered = await engine.run(request(ids, logprobs=0, steering=[vector(0, scale=3.0)]))
    again = await engine.run(request(ids, logprobs=0))
    assert again.choice == fresh.choice
    assert steered.choice != fresh.choice


# -- a mixed batch


def mixed(count: int, seed: int, longest: int = 200, most_tokens: int = 40) -> list[Generate]:
    """Captured, steered, both and plain requests of different lengths and Layers."""
    draw = random.Random(seed)
    asked = []
    for number in range(count):
        kind = number % 4
        fields = {"logprobs": 0 if kind != 1 else None}
        if kind in (1, 2):
            fields["capture"] = sorted(draw.sample(ALL, draw.randint(1, 4)))
        if kind in (2, 3):
            fields["steering"] = [
                vector(*sorted(draw.sample(ALL, draw.randint(1, 3))), scale=draw.uniform(-2, 2), seed=draw.randrange(5))
                for _ in range(draw.randint(1, 3))
            ]
        length = draw.choice([1, 2, draw.randint(3, longest)])
        asked.append(request(prompt(length, draw.randrange(10**6)), draw.randint(1, most_tokens), **fields))
    return asked


async def test_64_mixed_requests_at_once_are_each_right(engine: Running, reference):
    for answer in await engine.together(mixed(64, seed=1, longest=100, most_tokens=16)):
        assert_right(answer, reference)
    assert engine.files() == []


async def test_a_preempted_request_is_right_though_it_is_computed_twice(engine: Running, reference):
    """Each grows into a second block at the same time, and there are not enough for all."""
    before = await engine.worker("acs_rows_written_twice")
    kinds = [{"capture": ALL}, {"steering": [vector(1)]}, {"capture": [2], "steering": [vector(0, 2)]}, {}]
    asked = [request(prompt(120, seed), 30, logprobs=0, **kinds[seed % 4]) for seed in range(16)]
    for answer in await engine.together(asked):
        assert_right(answer, reference)
    assert await engine.worker("acs_rows_written_twice") > before


# -- faults


@pytest.mark.parametrize("where", ["begin", "plan", "write", "skip"])
async def test_a_fault_of_one_request_is_an_error_of_that_request_alone(engine: Running, reference, where):
    neighbours = mixed(12, seed=2)
    broken = request(prompt(100), 8, capture=[1, 2], steering=[vector(1)])
    await engine.worker("acs_break", broken.request_id, where)
    answer, *others = await engine.together([broken, *neighbours])
    assert answer.failed is not None
    assert answer.failed.code == "upstream_server_error"
    assert [type(piece).__name__ for piece in answer.pieces] == ["Failed"]
    for other in others:
        assert_right(other, reference)
    assert engine.files() == []


@pytest.mark.parametrize("norm_match", [False, True])
async def test_steering_beyond_all_range_fails_alone_and_leaves_no_nan_to_whoever_comes_next(
    engine: Running, reference, norm_match
):
    """NaN in a cached block would outlive its request: no token of the next one may rest on it."""
    huge = vector(0, 1, 2, 3, scale=1e38, norm_match=norm_match)
    broken = [request(prompt(100, seed), 30, steering=[huge], stream=bool(seed % 2)) for seed in range(16)]
    neighbours = [request(prompt(20, seed), 10, logprobs=0) for seed in range(32)]
    answers = await engine.together([*broken, *neighbours])
    assert {answer.failed.code for answer in answers[:16]} == {"invalid_request"}
    assert all(len(answer.pieces) == 1 for answer in answers[:16])
    for answer in answers[16:] + await engine.together(mixed(32, seed=5, longest=60, most_tokens=10)):
        assert_right(answer, reference)
    assert engine.files() == []


@pytest.mark.parametrize("where", ["begin", "plan", "write"])
async def test_no_token_of_a_stream_passes_that_was_not_steered(engine: Running, where):
    broken = request(prompt(20), 50, steering=[vector(1)], stream=True)
    await engine.worker("acs_break", broken.request_id, where)
    answer = await engine.run(broken)
    assert [type(piece).__name__ for piece in answer.pieces] == ["Failed"]


async def test_a_replica_whose_tap_reads_another_layer_does_not_start(engine: Running):
    await engine.worker("acs_swap_blocks")
    with pytest.raises(SelfTestFailed, match=r"self-test of the tap failed at reading: what leaves Layer \d"):
        await self_test(engine)
    await engine.worker("acs_swap_blocks")
    await self_test(engine)


async def self_test(engine: Running) -> None:
    model = TappedModel(4, 128, "float32")
    await SelfTest(engine.engine, model, engine.worker).run(model)


# -- what is left behind


async def until_empty(engine: Running) -> None:
    async with asyncio.timeout(30):
        while await engine.worker("acs_counts") != [0, 0]:
            await engine.run(request([5], 1))  # the worker hears of ended requests with its next step


async def test_nothing_is_left_after_1000_mixed_requests_and_aborts(engine: Running):
    asked = mixed(1000, seed=3, longest=30, most_tokens=6)
    running = asyncio.gather(*map(engine.run, asked))
    for number, one in enumerate(asked):
        if number % 5 == 0:
            asyncio.get_running_loop().call_later(0.01 * (number % 50), engine.engine.abort, one.request_id)
    answers = await running
    assert all(answer.failed is None for answer in answers)
    assert sum(choice.finish_reason == "abort" for answer in answers for choice in answer.choices) > 10
    assert engine.files() == []
    await until_empty(engine)


async def test_nothing_is_left_when_the_worker_is_killed(engine: Running):
    """The last test of this module: its engine is dead afterwards."""
    running = [asyncio.create_task(engine.run(one)) for one in mixed(16, seed=4, most_tokens=400)]
    async with asyncio.timeout(30):
        while not engine.files():  # noqa: ASYNC110 - the engine makes them
            await asyncio.sleep(0.001)
    # A server that other tests have started has an engine of its own, further down.
    ours = [p for p in processes.descendants(os.getpid()) if p.parent == os.getpid()]
    (core,) = [p for p in ours if "EngineCore" in p.command]
    os.kill(core.pid, signal.SIGKILL)
    answers = await asyncio.gather(*running)
    assert {answer.failed.code for answer in answers if answer.failed} == {"vllm_engine_dead"}
    assert engine.files() == []
