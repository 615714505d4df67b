"""What the real engine answers through the whole server, against Transformers on the same weights."""

import json

import httpx
import numpy as np
import pytest

from acs.platform.catalogue import Catalogue
from acs.platform.settings import SHIPPED_CATALOGUES

pytestmark = [pytest.mark.server, pytest.mark.engine]

TOLERANCE = 1e-3  # of a log probability, in float32: the same weights, summed in another order
PROMPTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    "]


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.v1, headers=server.headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def complete(http):
    def ask(prompt="The sky is", model="smollm2-135m", **fields):
        response = http.post("/completions", json={"model": model, "prompt": prompt, "max_tokens": 8, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture(scope="module")
def stream(http):
    def ask(prompt="The sky is", model="smollm2-135m", **fields):
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "stream": True, **fields}
        response = http.post("/completions", json=body)
        *events, done = [part.removeprefix("data: ") for part in response.text.split("\n\n") if part]
        assert done == "[DONE]"
        return [json.loads(event)["choices"][0] for event in events]

    return ask


@pytest.fixture(scope="module")
def reference(models_dir):
    """Log probabilities by Transformers: reference(model, token ids) -> float32 [positions, vocabulary]."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = {}

    def logprobs(model, ids):
        if model not in loaded:
            name = "default" if model == "smollm2-135m" else "toy"
            folder = Catalogue.load(SHIPPED_CATALOGUES / f"{name}.toml")[model].checkpoint(models_dir)
            loaded[model] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = loaded[model](torch.tensor([ids])).logits[0].float()
        return torch.log_softmax(logits, -1).numpy()

    return logprobs


def tokens(complete, prompt, **fields):
    """The request's answer with its prompt's and its own token ids."""
    (choice,) = complete(prompt, temperature=0, logprobs=1, return_token_ids=True, **fields)["choices"]
    return choice["prompt_token_ids"], choice["token_ids"], choice


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("model", ["smollm2-135m", "toy"])
def test_greedy_tokens_and_their_log_probabilities_are_those_of_transformers(complete, reference, prompt, model):
    prompt_ids, ids, choice = tokens(complete, prompt, model=model, max_tokens=24, ignore_eos=True)
    expected = reference(model, prompt_ids + ids)[len(prompt_ids) - 1 : -1]
    ours = np.array(choice["logprobs"]["token_logprobs"])
    theirs = expected[np.arange(len(ids)), ids]
    assert np.abs(ours - theirs).max() < TOLERANCE
    # The token is the likeliest by Transformers too, unless two are closer than the tolerance.
    assert (expected.max(axis=1) - theirs).max() < TOLERANCE


@pytest.mark.parametrize("k", [0, 1, 5, 100])
def test_prompt_log_probabilities_are_those_of_transformers(complete, reference, k):
    answer = complete(PROMPTS[1], model="toy", prompt_logprobs=k, max_tokens=1, return_token_ids=True)
    (choice,) = answer["choices"]
    ids = choice["prompt_token_ids"]
    expected = reference("toy", ids)
    assert choice["prompt_logprobs"][0] is None
    for position, entry in enumerate(choice["prompt_logprobs"][1:], start=1):
        row = expected[position - 1]
        for token_id, shown in entry.items():
            assert shown["logprob"] == pytest.approx(row[int(token_id)], abs=TOLERANCE)
        own = entry[str(ids[position])]
        assert abs(own["rank"] - (1 + (row > row[ids[position]]).sum())) <= 2  # near ties may stand in another order
        assert k <= len(entry) <= k + 1
        assert sorted(shown["rank"] for shown in entry.values() if shown is not own)[:1] in ([], [1], [2])


def test_the_whole_vocabulary_is_that_of_transformers(complete, reference):
    (choice,) = complete(PROMPTS[0], model="toy", prompt_logprobs=-1, max_tokens=1, return_token_ids=True)["choices"]
    ids = choice["prompt_token_ids"]
    expected = reference("toy", ids)
    for position, entry in enumerate(choice["prompt_logprobs"][1:], start=1):
        row = np.array([entry[str(token_id)]["logprob"] for token_id in range(len(entry))])
        assert np.abs(row - expected[position - 1]).max() < TOLERANCE
        ranks = [shown["rank"] for shown in entry.values()][1:]
        assert ranks == sorted(ranks)
        assert next(iter(entry)) == str(ids[position])


def test_a_prompt_of_token_ids_is_the_prompt_of_its_text(complete):
    ids, _, by_text = tokens(complete, PROMPTS[0])
    _, _, by_ids = tokens(complete, ids)
    assert by_ids["text"] == by_text["text"]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(complete):
    texts = [complete(seed=seed, max_tokens=16)["choices"][0]["text"] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_choice_i_draws_with_the_seed_plus_i_and_a_repeat_gives_the_same_choices(complete):
    first, again = ([choice["text"] for choice in complete(seed=100, n=4, max_tokens=12)["choices"]] for _ in range(2))
    assert first == again
    assert len(set(first)) > 1
    alone = [complete(seed=100 + i, max_tokens=12)["choices"][0]["text"] for i in range(4)]
    assert alone == first


def test_the_largest_seed_wraps_around_for_the_next_choice(complete):
    choices = complete(seed=2**63 - 1, n=2, max_tokens=8)["choices"]
    assert choices[1]["text"] == complete(seed=0, max_tokens=8)["choices"][0]["text"]


def test_a_stop_string_across_a_border_of_tokens_ends_the_text_where_it_starts(complete, stream):
    _, _, choice = tokens(complete, PROMPTS[1], max_tokens=24)
    parts, text = choice["logprobs"]["tokens"], choice["text"]
    border = len("".join(parts[:8]))
    stop = text[border - 2 : border + 2]  # ends one token, begins the next
    first = text.index(stop)
    stopped = complete(PROMPTS[1], temperature=0, max_tokens=24, stop=["never that", stop])["choices"][0]
    assert stopped["text"] == text[:first]
    assert stopped["finish_reason"] == "stop"
    streamed = stream(PROMPTS[1], temperature=0, max_tokens=24, stop=["never that", stop])
    assert "".join(event["text"] for event in streamed) == text[:first]
    assert streamed[-1]["finish_reason"] == "stop"


def test_echo_with_logprobs_holds_the_prompts_own_log_probabilities(complete):
    (echoed,) = complete(PROMPTS[0], echo=True, logprobs=2, temperature=0)["choices"]
    (plain,) = complete(PROMPTS[0], prompt_logprobs=2, logprobs=2, temperature=0, return_token_ids=True)["choices"]
    ids = plain["prompt_token_ids"]
    own = [
        entry[str(token_id)]["logprob"] for token_id, entry in zip(ids[1:], plain["prompt_logprobs"][1:], strict=True)
    ]
    assert echoed["text"] == PROMPTS[0] + plain["text"]
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert echoed["logprobs"]["token_logprobs"][1 : len(ids)] == pytest.approx(own, abs=TOLERANCE)
    assert "".join(echoed["logprobs"]["tokens"]) == echoed["text"]
    offsets = echoed["logprobs"]["text_offset"]
    assert [
        echoed["text"][offset:].startswith(token)
        for offset, token in zip(offsets, echoed["logprobs"]["tokens"], strict=True)
    ]


@pytest.mark.parametrize("prompt", ["🦀" * 14, "你好世界你好世界你好世界你好", "ありがとう" * 5])
def test_a_character_of_several_tokens_is_never_broken_in_a_stream(complete, stream, prompt):
    whole = complete(prompt, temperature=0, max_tokens=24, logprobs=0)["choices"][0]
    events = stream(prompt, temperature=0, max_tokens=24, logprobs=0)
    assert "".join(event["text"] for event in events) == whole["text"]
    assert not any("�" in event["text"] for event in events)
    assert len(events) == 24
    split = [token for token in whole["logprobs"]["tokens"] if token.startswith("bytes:")]
    assert split, "the prompt should make the model write characters of several tokens"
    assert any(event["text"] == "" for event in events)


def test_a_stream_put_together_is_the_whole_answer_of_random_bytes_too(complete, stream):
    """The toy writes bytes that are no text; both ways must agree on what they become."""
    for seed in range(3):
        fields = {"model": "toy", "seed": seed, "max_tokens": 64, "logprobs": 1, "n": 2}
        whole = complete("The sky is", **fields)["choices"]
        events = stream("The sky is", **fields)
        for choice in whole:
            mine = [event for event in events if event["index"] == choice["index"]]
            assert "".join(event["text"] for event in mine) == choice["text"]
            assert [event["logprobs"]["tokens"][0] for event in mine] == choice["logprobs"]["tokens"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_every_sampling_field_reaches_the_engine(complete):
    greedy = complete(temperature=0, max_tokens=12)["choices"][0]["text"]
    assert complete(top_k=1, max_tokens=12)["choices"][0]["text"] == greedy
    assert complete(min_p=1, max_tokens=12)["choices"][0]["text"] == greedy
    assert complete(top_p=1e-6, max_tokens=12)["choices"][0]["text"] == greedy
    assert complete(temperature=0, repetition_penalty=2, max_tokens=12)["choices"][0]["text"] != greedy
    forced = complete(temperature=0, logit_bias={"1000": 100}, max_tokens=3, return_token_ids=True)["choices"][0]
    assert forced["token_ids"] == [1000] * 3
    ends = {"temperature": 0, "logit_bias": {"2": 100}, "return_token_ids": True}  # 2 ends the text
    assert complete(**ends)["choices"][0]["finish_reason"] == "stop"
    assert len(complete(**ends, ignore_eos=True)["choices"][0]["token_ids"]) == 8
    assert len(complete(**ends, min_tokens=4)["choices"][0]["token_ids"]) >= 4


def test_many_choices_of_many_prompts_come_in_their_order(complete):
    answer = complete(["The sky is", "The grass is"], n=32, max_tokens=2, model="toy")
    assert [choice["index"] for choice in answer["choices"]] == list(range(64))
    assert answer["usage"]["completion_tokens"] == 128


def test_a_thousand_and_twenty_four_choices_are_one_request(complete):
    answer = complete(n=1024, max_tokens=1, model="toy")
    assert len(answer["choices"]) == 1024
