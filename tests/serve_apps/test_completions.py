"""POST /v1/completions in front of a fake engine: the shapes, the streams, the counts."""

import json

from api_client import events_of


async def test_a_completion_has_the_keys_of_the_contract_in_their_order(api):
    response = await api.complete(logprobs=1)
    answer = response.json()
    assert response.status_code == 200
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert list(answer["choices"][0]) == ["index", "text", "logprobs", "finish_reason", "prompt_logprobs"]
    assert list(answer["choices"][0]["logprobs"]) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    assert answer["model"] == "acs/toy-llama"
    assert answer["id"].startswith("cmpl-")
    assert len(answer["id"]) == len("cmpl-") + 16


async def test_a_stream_is_one_event_a_token_and_then_done(api):
    response = await api.complete(stream=True, max_tokens=3, stream_options={"include_usage": True})
    *chunks, usage, done = events_of(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert done == "[DONE]"
    assert len(chunks) == 3
    assert list(json.loads(chunks[0])["choices"][0]) == ["index", "text", "logprobs", "finish_reason"]
    assert [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] == 3


async def test_the_stream_put_together_is_the_whole_answer(api):
    whole = (await api.complete(max_tokens=20, seed=3, echo=True, logprobs=2, n=2)).json()
    *chunks, _ = events_of(await api.complete(max_tokens=20, seed=3, echo=True, logprobs=2, n=2, stream=True))
    for choice in whole["choices"]:
        mine = [c for c in (json.loads(chunk)["choices"][0] for chunk in chunks) if c["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for chunk in mine for value in chunk["logprobs"][name]] == values


async def test_the_whole_vocabulary_comes_with_every_entry(api):
    response = await api.complete(prompt_logprobs=-1, max_tokens=1)
    answer = response.json()
    (choice,) = answer["choices"]
    assert choice["prompt_logprobs"][0] is None
    assert len(choice["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    vocabulary = api.services.models["toy"].tokenizer.vocab_size
    assert all(len(entry) == vocabulary for entry in choice["prompt_logprobs"][1:])
