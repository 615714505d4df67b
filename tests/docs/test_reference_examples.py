"""The examples of the platform's public pages (quickstart, completions, cheatsheet), run against a server of ours.

Changed are the model's id and, with it, token counts and sampled texts; commands and shapes are the public ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import openai
import pytest
from server.running import Server

from acs.tensors import decode

pytestmark = pytest.mark.server

HTTP_ERROR = 22  # curl's exit status for an answer of 400 and above, with --fail-with-body
ANSWER = ["id", "object", "created", "model", "choices", "usage"]
CHOICE = ["index", "text", "logprobs", "finish_reason", "prompt_logprobs"]
LOGPROBS = ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
USAGE = ["prompt_tokens", "completion_tokens", "total_tokens"]
PROMPT_TOKENS = 3  # of "The sky is"; this tokenizer puts nothing in front

HEAD = r'data: \{"id":"cmpl-[0-9a-f]{16}","object":"text_completion","created":\d{10},"model":"[^"]+",'
CHUNK = re.compile(
    HEAD + r'"choices":\[\{"index":(\d+),"text":"(?:[^"\\]|\\.)*","logprobs":null,"finish_reason":(null|"\w+")\}\]\}'
)
USAGE_CHUNK = re.compile(
    HEAD + r'"choices":\[\],"usage":\{"prompt_tokens":(\d+),"completion_tokens":(\d+),"total_tokens":(\d+)\}\}'
)

SDK = """
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["ACS_API_BASE"], api_key=os.environ["ACS_API_KEY"])
"""


class Shell:
    """Runs what a reader would type."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def run(self, command: list[str], program: str, *, status: int = 0) -> str:
        ran = subprocess.run(command, input=program, env=self._environment, capture_output=True, text=True, timeout=60)
        assert ran.returncode == status, ran.stdout + ran.stderr
        return ran.stdout

    def python(self, program: str) -> str:
        return self.run([sys.executable, "-"], SDK + program)

    def curl(self, body: str, *, options: str = "", status: int = 0) -> str:
        return self.run(
            ["bash", "-euo", "pipefail"],
            f'curl {options} "$ACS_API_BASE/completions" -H "Authorization: Bearer $ACS_API_KEY"'
            f" -H \"Content-Type: application/json\" -d '{body}'",
            status=status,
        )

    def completion(self, body: str, *, options: str = "") -> Any:
        """The answer of curl, its keys those of the contract, in order."""
        answer = json.loads(self.curl(body, options=options))
        assert list(answer) == ANSWER
        assert re.fullmatch(r"cmpl-[0-9a-f]{16}", answer["id"])
        assert answer["object"] == "text_completion"
        assert "SmolLM2-135M" in answer["model"]
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
        assert all(list(choice) == CHOICE for choice in answer["choices"])
        assert all(choice["finish_reason"] in ("length", "stop") for choice in answer["choices"])
        assert list(answer["usage"]) == USAGE
        assert answer["usage"]["total_tokens"] == sum(list(answer["usage"].values())[:2])
        return answer

    def refusal(self, body: str) -> Any:
        return json.loads(self.curl(body, status=HTTP_ERROR))["error"]


@pytest.fixture(scope="session")
def shell(environment: dict[str, str]) -> Shell:
    return Shell(environment)


# The quickstart.


def test_a_prompt_with_the_log_probability_of_each_token(shell: Shell) -> None:
    answer = shell.completion('{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "logprobs": 1}')
    (choice,) = answer["choices"]
    logprobs = choice["logprobs"]
    written = len(logprobs["tokens"])
    assert list(logprobs) == LOGPROBS
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:i])) for i in range(written)]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob <= 0
        assert len(top) in (1, 2)  # the likeliest and the sampled one, which may be the same
    assert choice["prompt_logprobs"] is None
    assert list(answer["usage"].values()) == [PROMPT_TOKENS, written, PROMPT_TOKENS + written]


def test_the_same_from_python(shell: Shell) -> None:
    text, logprobs = shell.python("""
completion = client.completions.create(model="smollm2-135m", prompt="The sky is", max_tokens=2, logprobs=1)
print(repr(completion.choices[0].text))
print(completion.choices[0].logprobs.token_logprobs)
""").splitlines()
    assert len(text) > 2
    assert all(value <= 0 for value in json.loads(logprobs))


def stream_lines(printed: str) -> list[str]:
    """The events of a stream as curl prints them, each followed by an empty line; the last is [DONE]."""
    *events, done, nothing = printed.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return events


def test_a_stream_is_one_event_a_token_then_done(shell: Shell) -> None:
    body = '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "stream": true}'
    chunks = [CHUNK.fullmatch(line) for line in stream_lines(shell.curl(body))]
    assert all(chunks)
    assert [chunk[2] for chunk in chunks if chunk] in (["null", '"length"'], ["null", '"stop"'], ['"stop"'])


def test_a_stream_in_python(shell: Shell) -> None:
    printed = shell.python("""
stream = client.completions.create(model="smollm2-135m", prompt="The sky is", max_tokens=2, stream=True)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].text, end="", flush=True)
print()
""")
    assert printed.strip()


# The page on continuations.


def test_the_sampling_fields(shell: Shell) -> None:
    answer = shell.completion(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 16, "temperature": 0.7, "top_p": 0.9,'
        ' "stop": ["\\n"]}'
    )
    assert "\n" not in answer["choices"][0]["text"]


def test_choice_i_of_prompt_p_has_the_index_p_times_n_plus_i(shell: Shell) -> None:
    fields = '"model": "smollm2-135m", "max_tokens": 2, "n": 2, "echo": true'
    answer = shell.completion(f'{{{fields}, "prompt": ["The sky is", "The grass is"]}}')
    starts = ["The sky is", "The sky is", "The grass is", "The grass is"]
    assert all(choice["text"].startswith(start) for choice, start in zip(answer["choices"], starts, strict=True))
    assert answer["usage"]["prompt_tokens"] == 2 * PROMPT_TOKENS  # each prompt once


def test_several_prompts_from_python(shell: Shell) -> None:
    printed = shell.python("""
completion = client.completions.create(
    model="smollm2-135m", prompt=["The sky is", "The grass is"], max_tokens=2, n=2
)
for choice in completion.choices:
    print(choice.index, repr(choice.text))
""")
    assert [line.split()[0] for line in printed.splitlines()] == ["0", "1", "2", "3"]


def test_several_choices_must_set_max_tokens(shell: Shell) -> None:
    for body in ('"prompt": ["The sky is", "The grass is"]', '"prompt": "The sky is", "n": 2'):
        error = shell.refusal(f'{{"model": "smollm2-135m", {body}}}')
        assert (error["code"], error["param"]) == ("invalid_request", "max_tokens")


def test_the_sdk_sends_vllms_fields_in_extra_body(shell: Shell) -> None:
    printed = shell.python("""
completion = client.completions.create(
    model="smollm2-135m",
    prompt="The sky is",
    max_tokens=2,
    temperature=0.7,
    extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1},
)
print(repr(completion.choices[0].text))
""")
    assert len(printed.strip()) > 2


def test_the_sdk_has_no_argument_for_them(server: Server) -> None:
    untyped: Any = openai.OpenAI(base_url=server.v1, api_key=server.key)
    with pytest.raises(TypeError):
        untyped.completions.create(model="smollm2-135m", prompt="The sky is", max_tokens=2, top_k=20)


def test_curl_sends_them_at_the_top_of_the_body(shell: Shell) -> None:
    shell.completion(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "temperature": 0.7, "top_k": 20,'
        ' "min_p": 0.05, "repetition_penalty": 1.1}'
    )


def test_a_field_named_extra_body_is_refused(shell: Shell) -> None:
    error = shell.refusal(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "extra_body": {"top_k": 20}}'
    )
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_request", "extra_body")


def test_a_stream_with_usage_ends_with_a_chunk_without_choices(shell: Shell) -> None:
    printed = shell.curl(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "stream": true,'
        ' "stream_options": {"include_usage": true}}',
        options="-N",
    )
    *chunks, usage = stream_lines(printed)
    assert all(CHUNK.fullmatch(line) for line in chunks)
    counts = USAGE_CHUNK.fullmatch(usage)
    assert counts
    assert [int(count) for count in counts.groups()] == [PROMPT_TOKENS, len(chunks), PROMPT_TOKENS + len(chunks)]


def test_a_stream_with_usage_in_python(shell: Shell) -> None:
    printed = shell.python("""
stream = client.completions.create(
    model="smollm2-135m", prompt="The sky is", max_tokens=2, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].text, end="", flush=True)
    if chunk.usage:
        print(f"\\n[tokens: {chunk.usage.total_tokens}]")
""")
    assert re.search(r"^\[tokens: [45]\]$", printed, re.MULTILINE)


def test_the_choices_of_a_stream_come_with_their_index(shell: Shell) -> None:
    printed = shell.curl(
        '{"model": "smollm2-135m", "prompt": ["The sky is", "The grass is"], "max_tokens": 2, "n": 2, "stream": true}'
    )
    chunks = [found for line in stream_lines(printed) if (found := CHUNK.fullmatch(line))]
    assert sorted(int(chunk[1]) for chunk in chunks if chunk[2] != "null") == [0, 1, 2, 3]


def test_a_stream_refuses_prompt_logprobs_and_takes_logprobs(shell: Shell) -> None:
    fields = '"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "stream": true'
    error = shell.refusal(f'{{{fields}, "prompt_logprobs": 1}}')
    assert (error["code"], error["param"]) == ("invalid_request", "prompt_logprobs")
    for line in stream_lines(shell.curl(f'{{{fields}, "logprobs": 1}}')):
        (choice,) = json.loads(line.removeprefix("data: "))["choices"]
        assert list(choice) == CHOICE[:4]
        assert list(choice["logprobs"]) == LOGPROBS


def test_a_stream_can_be_left_early(shell: Shell) -> None:
    printed = shell.python("""
with client.completions.create(
    model="smollm2-135m", prompt="The sky is", max_tokens=200, stream=True
) as stream:
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].text, end="", flush=True)
            if "." in chunk.choices[0].text:
                break
print()
""")
    assert printed.count(".") <= 3  # one token, "..." at most


def test_a_seed_gives_the_same_tokens_again(shell: Shell) -> None:
    first, second = shell.python("""
for _ in range(2):
    completion = client.completions.create(
        model="smollm2-135m", prompt="The sky is", max_tokens=8, seed=7
    )
    print(repr(completion.choices[0].text))
""").splitlines()
    assert first == second


# The cheatsheet, where it adds something.


def test_the_smallest_request(shell: Shell) -> None:
    shell.completion('{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2}')


def test_the_content_type_may_be_left_out(shell: Shell) -> None:
    printed = shell.run(
        ["bash", "-euo", "pipefail"],
        'curl "$ACS_API_BASE/completions" -H "Authorization: Bearer $ACS_API_KEY"'
        """ -d '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2}'""",
    )
    assert list(json.loads(printed)) == ANSWER


def test_sampling_with_a_seed_and_a_stop_text(shell: Shell) -> None:
    body = (
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "temperature": 0.7, "top_p": 0.9,'
        ' "seed": 7, "stop": ["\\n"]}'
    )
    assert shell.completion(body)["choices"] == shell.completion(body)["choices"]


def test_the_five_likeliest_tokens_at_each_position(shell: Shell) -> None:
    answer = shell.completion('{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "logprobs": 5}')
    logprobs = answer["choices"][0]["logprobs"]
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert token in top
        assert len(top) in (5, 6)


def test_the_prompts_log_probabilities(shell: Shell) -> None:
    answer = shell.completion(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 1, "prompt_logprobs": 5}'
    )
    first, *rows = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(rows) == PROMPT_TOKENS - 1
    assert [next(iter(row.values()))["decoded_token"] for row in rows] == [" sky", " is"]
    for row in rows:
        assert len(row) in (5, 6)
        assert all(key.isdecimal() for key in row)
        assert all(list(entry) == ["logprob", "rank", "decoded_token"] for entry in row.values())


def test_the_whole_vocabulary_of_a_prompt(shell: Shell) -> None:
    answer = shell.completion(
        '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 1, "prompt_logprobs": -1}',
        options="--compressed",
    )
    assert [row and len(row) for row in answer["choices"][0]["prompt_logprobs"]] == [None, 49_152, 49_152]


def test_the_sdk_asks_for_the_prompts_log_probabilities_in_extra_body(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)
    completion = client.completions.create(
        model="smollm2-135m", prompt="The sky is", max_tokens=1, extra_body={"prompt_logprobs": 5}
    )
    choice: Any = completion.choices[0]
    assert len(choice.prompt_logprobs) == PROMPT_TOKENS


def test_echo_puts_the_prompt_in_front(shell: Shell) -> None:
    answer = shell.completion('{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "echo": true}')
    assert answer["choices"][0]["text"].startswith("The sky is")
    assert len(answer["choices"][0]["text"]) > len("The sky is")


def test_the_models_and_their_context_lengths(shell: Shell) -> None:
    listed = json.loads(
        shell.run(["bash", "-euo", "pipefail"], 'curl "$ACS_API_BASE/models" -H "Authorization: Bearer $ACS_API_KEY"')
    )
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["smollm2-135m", "toy"])
    assert listed["data"][0]["capabilities"]["max_model_len"] == 8192


def test_the_residual_stream_at_two_layers(shell: Shell) -> None:
    answer = json.loads(
        shell.curl(
            '{"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 2, "output_residual_stream": [0, 2]}'
        )
    )
    assert list(answer) == [*ANSWER, "activations"]
    layers, positions, hidden = decode(answer["activations"]["residual_stream"]).shape
    usage = answer["usage"]
    assert (layers, positions, hidden) == (2, usage["prompt_tokens"] + usage["completion_tokens"] - 1, 576)


def test_a_steering_vector_in_extra_body(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)
    vector = [0.5] * 576
    completion = client.completions.create(
        model="smollm2-135m",
        prompt="The sky is",
        max_tokens=2,
        extra_body={"apply_steering_vectors": [{"activations": [vector], "layer_indices": [1], "scale": 2.0}]},
    )
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2


def test_a_whole_answer_that_cannot_come_in_time_is_not_to_be_sent_again(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="smollm2-135m", prompt="The sky is", max_tokens=15_601)
    assert (caught.value.code, caught.value.param) == ("deadline_infeasible", "max_tokens")
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_a_clients_request_id_is_on_the_answer_and_in_the_error(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(
            model="llama-8b", prompt="The sky is", max_tokens=2, extra_headers={"X-Request-Id": "sky-001_a"}
        )
    assert caught.value.code == "model_not_found"
    assert caught.value.response.headers["x-request-id"] == "sky-001_a"
    assert caught.value.response.json()["request_id"] == "sky-001_a"


def test_a_long_answer_is_compressed_and_a_stream_is_not(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)  # accepts gzip by itself
    raw = client.completions.with_raw_response
    long = raw.create(model="smollm2-135m", prompt="The sky is", max_tokens=4, logprobs=20)
    assert long.headers["content-encoding"] == "gzip"
    with client.completions.with_streaming_response.create(
        model="smollm2-135m", prompt="The sky is", max_tokens=2, stream=True
    ) as streamed:
        assert "content-encoding" not in streamed.headers
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text().endswith("data: [DONE]\n\n")


def test_a_wrong_method_is_told_the_right_one(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key, max_retries=0)
    with pytest.raises(openai.APIStatusError) as caught:
        client.get("/completions", cast_to=object)
    assert caught.value.status_code == 405
    assert caught.value.response.headers["allow"] == "POST"


# The openai SDK without the shell, in both its kinds.


def test_the_sync_sdk_parses_a_completion_and_a_stream(server: Server) -> None:
    client = openai.OpenAI(base_url=server.v1, api_key=server.key)
    asked: dict[str, Any] = {"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 8, "seed": 7}
    whole = client.completions.create(**asked, logprobs=2)
    chunks = list(client.completions.create(**asked, logprobs=2, stream=True, stream_options={"include_usage": True}))
    assert isinstance(whole, openai.types.Completion)
    assert whole.usage is not None
    assert whole.choices[0].logprobs is not None
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == len(chunks) - 1


async def test_the_async_sdk_parses_a_completion_a_stream_and_an_error(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=server.v1, api_key=server.key) as client:
        asked: dict[str, Any] = {"model": "smollm2-135m", "prompt": "The sky is", "max_tokens": 8, "seed": 7}
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == whole.choices[0].text
        async with await client.completions.create(**{**asked, "max_tokens": 200}, stream=True) as left_early:
            async for chunk in left_early:
                assert chunk.choices[0].index == 0
                break
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.with_options(api_key="sk-acs-nobody").models.list()
        assert caught.value.code == "invalid_api_key"
        assert [model.id async for model in client.models.list()] == ["smollm2-135m", "toy"]
