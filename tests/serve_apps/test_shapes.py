"""What an answer holds: log probabilities, echo, token ids, and that a stream put together is the whole answer."""

import asyncio
import itertools
import json

import pytest
from api_client import events_of

BROKEN = 100  # an id of the toy that is one byte of a longer character
NAMES = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


@pytest.fixture
def texts(api):
    return api.services.models["toy"].tokenizer.token_texts


async def choices_of(api, **fields):
    response = await api.complete(**fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


# -- logprobs


@pytest.mark.parametrize("k", [0, 1, 5, 100])
async def test_top_logprobs_hold_the_k_likeliest_and_the_sampled_token(api, k):
    (choice,) = await choices_of(api, logprobs=k, max_tokens=4)
    lists = choice["logprobs"]
    assert {name: len(values) for name, values in lists.items()} == dict.fromkeys(NAMES, 4)
    for token, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert next(iter(top.items())) == (token, logprob)
        assert len(top) == k + 1  # the fake's sampled tokens are never among the likeliest
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"] == [0, *itertools.accumulate(map(len, lists["tokens"][:-1]))]


async def test_without_logprobs_there_are_none(api):
    (choice,) = await choices_of(api, echo=True)
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] is None


# -- echo


@pytest.mark.parametrize(
    "prompt", ["The sky is", "日本 🎉", [533, 262], [0, 533], [BROKEN], [164, 247], [164, 247, BROKEN]]
)
async def test_echo_puts_the_prompt_in_front_and_its_tokens_in_the_lists(api, texts, prompt):
    (bare,) = await choices_of(api, prompt=prompt, seed=1)
    (choice,) = await choices_of(api, prompt=prompt, seed=1, echo=True)
    (scored,) = await choices_of(api, prompt=prompt, seed=1, echo=True, logprobs=2, return_token_ids=True)
    assert choice["text"].endswith(bare["text"])
    if isinstance(prompt, str):
        assert choice["text"] == prompt + bare["text"]
    assert scored["text"] == choice["text"]
    ids = scored["prompt_token_ids"] + scored["token_ids"]
    lists = scored["logprobs"]
    assert lists["tokens"] == [texts[token_id] for token_id in ids]
    assert [len(lists[name]) for name in NAMES] == [len(ids)] * 4
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert None not in lists["token_logprobs"][1:]
    assert all(len(top) == 3 for top in lists["top_logprobs"][1:])
    generated = len(scored["token_ids"])
    assert lists["text_offset"][-generated] == len(scored["text"]) - len(bare["text"])
    assert lists["text_offset"] == sorted(lists["text_offset"])


async def test_echo_counts_only_what_was_generated(api):
    usage = (await api.complete(echo=True, max_tokens=3)).json()["usage"]
    assert usage == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}


# -- a stream put together is the whole answer


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("prompt", ["The sky is", ["The", "A sky"], [[5], [6, 7, 8]], [BROKEN]], ids=repr)
async def test_the_stream_put_together_is_the_whole_answer(api, prompt, logprobs, echo):
    fields = {"prompt": prompt, "logprobs": logprobs, "echo": echo, "n": 2, "seed": 3, "max_tokens": 5}
    fields["return_token_ids"] = True
    whole = await choices_of(api, **fields)
    *chunks, usage, done = events_of(await api.complete(**fields, stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert len(chunks) == 5 * len(whole)
    assert all("usage" not in chunk for chunk in chunks)
    assert {json.dumps({**chunk, "choices": []}) for chunk in chunks} == {json.dumps({**chunks[0], "choices": []})}
    for choice in whole:
        mine = [c for c in (chunk["choices"][0] for chunk in chunks) if c["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        assert [chunk["finish_reason"] for chunk in mine] == [None] * 4 + [choice["finish_reason"]]
        assert [value for chunk in mine for value in chunk["token_ids"]] == choice["token_ids"]
        assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert all("prompt_token_ids" not in chunk and "prompt_logprobs" not in chunk for chunk in mine[1:])
        if logprobs is None:
            assert all(chunk["logprobs"] is None for chunk in mine)
        else:
            for name in NAMES:
                assert [value for chunk in mine for value in chunk["logprobs"][name]] == choice["logprobs"][name]
    usage = json.loads(usage)
    assert list(usage) == ["id", "object", "created", "model", "choices", "usage"]
    assert usage["usage"]["completion_tokens"] == 5 * len(whole)


async def test_choices_of_a_stream_interleave(api):
    api.engine.step_s = 0.001
    *chunks, _ = events_of(await api.complete(n=2, max_tokens=20, stream=True))
    indexes = [json.loads(chunk)["choices"][0]["index"] for chunk in chunks]
    assert len(list(itertools.groupby(indexes))) > 2


async def test_a_chunk_of_a_stream_has_these_keys_in_this_order(api):
    first, *_ = events_of(await api.complete(stream=True, logprobs=0, return_token_ids=True))
    keys = ["index", "text", "logprobs", "finish_reason", "token_ids", "prompt_token_ids"]
    assert list(json.loads(first)["choices"][0]) == keys


# -- several prompts and choices


async def test_choice_i_of_prompt_p_has_the_index_p_times_n_plus_i(api):
    choices = await choices_of(api, prompt=["The", "A sky"], n=3, echo=True, return_token_ids=True)
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["text"].startswith("The") for choice in choices] == [True] * 3 + [False] * 3
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 6


async def test_each_prompt_counts_once_and_every_choice_adds(api):
    usage = (await api.complete(prompt=[[5, 6], [7]], n=3, max_tokens=4)).json()["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 24, "total_tokens": 27}


async def test_1024_choices_of_one_request(api):
    choices = await choices_of(api, n=1024, max_tokens=1)
    assert [choice["index"] for choice in choices] == list(range(1024))


async def test_a_stop_string_ends_the_text_where_it_starts(api):
    (free,) = await choices_of(api, max_tokens=20)
    stop = free["text"][10]
    (choice,) = await choices_of(api, max_tokens=20, stop=stop)
    assert choice["text"] == free["text"].split(stop)[0]
    assert choice["finish_reason"] == "stop"
    assert free["finish_reason"] == "length"


# -- prompt_logprobs


@pytest.mark.parametrize("k", [0, 1, 5])
async def test_prompt_logprobs_hold_the_prompts_own_token_first_and_the_k_likeliest(api, texts, k):
    (choice,) = await choices_of(api, prompt=[700, 701, 702], prompt_logprobs=k)
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    for token_id, entry in zip([701, 702], entries, strict=True):
        assert list(entry) == [str(token_id), *map(str, range(k))]
        assert list(entry[str(token_id)]) == ["logprob", "rank", "decoded_token"]
        assert entry[str(token_id)] == {"logprob": -5.5, "rank": k + 1, "decoded_token": texts[token_id]}
        assert [entry[str(i)]["rank"] for i in range(k)] == list(range(1, k + 1))


async def test_the_prompts_own_token_comes_first_when_it_is_among_the_likeliest(api):
    (choice,) = await choices_of(api, prompt=[700, 2, 1], prompt_logprobs=5)
    assert [list(entry) for entry in choice["prompt_logprobs"][1:]] == [list("20134"), list("10234")]


async def test_a_prompt_of_one_token_has_one_empty_place(api):
    for k in (0, 5, -1):
        (choice,) = await choices_of(api, prompt=[5], prompt_logprobs=k)
        assert choice["prompt_logprobs"] == [None]


async def test_each_choice_has_its_prompts_log_probabilities(api):
    choices = await choices_of(api, prompt=[[5, 6], [7, 8, 9]], n=2, prompt_logprobs=1)
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [2, 2, 3, 3]


async def test_echo_with_logprobs_and_prompt_logprobs_each_show_their_own_k(api):
    for mine, theirs in ((1, 4), (4, 1)):
        (choice,) = await choices_of(api, prompt=[700, 701], echo=True, logprobs=mine, prompt_logprobs=theirs)
        assert len(choice["logprobs"]["top_logprobs"][1]) == mine + 1
        assert len(choice["prompt_logprobs"][1]) == theirs + 1


# -- the whole vocabulary


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 2}], ids=repr)
async def test_the_whole_vocabulary_beside_the_other_fields(api, fields):
    common = {"prompt": [[700, 701, 702], [5]], "n": 2, "seed": 1, "return_token_ids": True, **fields}
    whole = (await api.complete(**common, prompt_logprobs=-1)).json()
    plain = (await api.complete(**common)).json()
    assert list(whole) == list(plain)
    assert whole["usage"] == plain["usage"]
    assert [list(choice) for choice in whole["choices"]] == [list(choice) for choice in plain["choices"]]
    for choice, other in zip(whole["choices"], plain["choices"], strict=True):
        rows = choice.pop("prompt_logprobs")
        del other["prompt_logprobs"]
        assert len(rows) == len(choice["prompt_token_ids"])
        assert rows[0] is None
        for token_id, row in zip(choice["prompt_token_ids"][1:], rows[1:], strict=True):
            assert next(iter(row)) == str(token_id)
            assert sorted(map(int, row)) == list(range(2048))
            assert sorted(entry["rank"] for entry in row.values()) == list(range(1, 2049))
            assert all(entry["logprob"] == (1 - entry["rank"]) / 8 for entry in row.values())
        if fields.get("echo") and "logprobs" in fields:  # here the rows are the fake's whole-vocabulary ones
            lists, others = choice.pop("logprobs"), other.pop("logprobs")
            assert lists["tokens"] == others["tokens"]
            assert [top and len(top) for top in lists["top_logprobs"]] == [
                top and len(top) for top in others["top_logprobs"]
            ]
        assert choice == other


async def test_only_as_many_whole_vocabularies_as_are_allowed_run_at_once(api):
    api.engine.step_s = 0.001
    peak = 0

    def submit(request, sink, submit=api.engine.submit):
        nonlocal peak
        submit(request, sink)
        peak = max(peak, api.running)

    api.engine.submit = submit
    answers = await asyncio.gather(*(api.complete(prompt_logprobs=-1) for _ in range(6)))
    assert [answer.status_code for answer in answers] == [200] * 6
    assert peak == 2


# -- tokens that are not text


async def test_a_token_that_is_no_text_is_shown_by_its_bytes(api):
    (choice,) = await choices_of(api, prompt=[164, 247, 100], echo=True, logprobs=0, prompt_logprobs=0)
    assert choice["logprobs"]["tokens"][:3] == [r"bytes:\xe6", r"bytes:\x97", r"bytes:\xa5"]
    assert list(choice["logprobs"]["top_logprobs"][2]) == [r"bytes:\xa5"]
    assert choice["prompt_logprobs"][2]["100"]["decoded_token"] == r"bytes:\xa5"
    assert choice["text"].startswith("日")
    assert choice["logprobs"]["text_offset"][:4] == [0, 0, 0, 1]


async def test_no_entry_of_a_map_is_lost(texts):
    assert len(set(texts)) == len(texts)
