"""Models, chat completions and completions by openai-python, unmodified."""

import json
from bisect import bisect_left
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.gateway.sdk.deployments import (
    CHAT,
    ECHO,
    FULL,
    HI,
    SAYS_HELLO,
    SLOW,
    Deployment,
    Weather,
)


class Time(BaseModel):
    """The time of day."""


TOOL = pydantic_function_tool(Weather, name="get_weather")
OTHER_TOOL = pydantic_function_tool(Time, name="get_time")


def test_the_models_are_listed(client: OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}

    assert {CHAT, ECHO, SLOW, FULL} <= set(models)
    assert client.models.retrieve(ECHO) == models[ECHO]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("a/b")
    assert unknown.value.code == "model_not_found"


def test_a_chat_is_answered(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=CHAT,
        messages=[
            {"role": "developer", "content": "be friendly"},
            {"role": "user", "content": [{"type": "text", "text": "say hello"}]},
            {"role": "assistant", "content": "to whom?"},
            {"role": "user", "content": "the world"},
        ],
        extra_body=SAYS_HELLO,
    )

    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("hello, world", "stop")
    assert completion.usage is not None
    assert (
        completion.usage.completion_tokens >= len("hello, world") - 2
    )  # some tokens are two bytes


def test_every_answer_names_its_request_and_its_job(client: OpenAI, deployment: Deployment) -> None:
    raw = client.chat.completions.with_raw_response.create(model=ECHO, messages=HI, max_tokens=1)

    assert raw.headers["x-request-id"]
    assert raw.parse().id == f"chatcmpl-{raw.headers['x-rose-job-id']}"
    with deployment.client(ECHO) as behind:
        assert behind.job(raw.headers["x-rose-job-id"]).status().status == "finished"


def test_a_chat_streams(client: OpenAI) -> None:
    with client.chat.completions.create(
        model=CHAT,
        messages=HI,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=SAYS_HELLO,
    ) as stream:
        *chunks, last = list(stream)

    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello, world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_several_choices_draw_with_seeds_of_their_own(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=CHAT, messages=HI, n=3, seed=7, temperature=1, max_tokens=8
    )
    with client.chat.completions.create(
        model=CHAT, messages=HI, n=3, seed=7, temperature=1, max_tokens=8, stream=True
    ) as stream:
        streamed = {0: "", 1: "", 2: ""}
        for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""

    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    texts = {choice.index: choice.message.content for choice in completion.choices}
    assert texts == streamed, "the same seed draws the same"
    assert len(set(texts.values())) > 1, "each choice draws with a seed of its own"


def test_a_stop_text_ends_the_answer_and_is_cut_off(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=CHAT, messages=HI, stop=[",", "!"], extra_body=SAYS_HELLO
    )

    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("hello", "stop")


def test_log_probabilities_come_with_every_token(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=CHAT, messages=HI, logprobs=True, top_logprobs=2, extra_body=SAYS_HELLO
    )

    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    entries = logprobs.content or []
    assert b"".join(bytes(entry.bytes or ()) for entry in entries) == b"hello, world"
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= entry.top_logprobs[0].logprob <= 0


def test_log_probabilities_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=CHAT, messages=HI, logprobs=True, top_logprobs=1, extra_body=SAYS_HELLO
    ) as stream:
        final = stream.get_final_completion()

    logprobs = final.choices[0].logprobs
    assert logprobs is not None
    text = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content or [])
    assert text == b"hello, world"


def test_a_bias_makes_a_token_certain(client: OpenAI) -> None:
    letter = ord("A") - ord("!")  # as the byte-level alphabet numbers them

    completion = client.chat.completions.create(
        model=CHAT, messages=HI, logit_bias={str(letter): 100}, temperature=1, max_tokens=5
    )

    assert completion.choices[0].message.content == "AAAAA"


def test_structured_output_is_parsed(client: OpenAI) -> None:
    completion = client.chat.completions.parse(model=CHAT, messages=HI, response_format=Weather)

    assert isinstance(completion.choices[0].message.parsed, Weather)


def test_any_json_object_may_be_asked_for(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model=CHAT, messages=HI, response_format={"type": "json_object"}, max_tokens=2000
    )

    (choice,) = completion.choices
    assert choice.message.content is not None
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:  # the random model has not closed it in time
        assert choice.message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
    ids=["required", "named"],
)
def test_a_function_must_be_called(client: OpenAI, choice: object, names: set[str]) -> None:
    completion = client.chat.completions.parse(
        model=CHAT,
        messages=HI,
        tools=[OTHER_TOOL, TOOL],
        tool_choice=choice,
        parallel_tool_calls=False,
        n=2,
    )

    for answer in completion.choices:
        (call,) = answer.message.tool_calls or []
        assert call.function.name in names
        assert isinstance(call.function.parsed_arguments, Weather | Time)
        assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "foo"}, "Invalid type: foo"),
        ({"$ref": "#/nope"}, "'/nope' does not exist"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "property 'v' is unsatisfiable"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
        ({"type": "integer", "multipleOf": 62615533}, ".properties.v.multipleOf: "),
    ],
)
@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_schema_that_cannot_be_compiled_is_told_with_its_function(
    client: OpenAI, schema: dict[str, Any], says: str, choice: Any, strict: bool
) -> None:
    # given: the second of three tools
    inner = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    culprit = {"name": "culprit", "parameters": inner, "strict": strict}
    tools: Any = [
        TOOL,
        {"type": "function", "function": culprit},
        {"type": "function", "function": {"name": "other"}},
    ]
    if choice == "named":
        choice = {"type": "function", "function": {"name": "culprit"}}
    # when
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=CHAT, messages=HI, tools=tools, tool_choice=choice, max_tokens=40
        )
    # then
    assert refused.value.param == "tools"
    assert "the parameters of 'culprit'" in refused.value.message
    assert says in refused.value.message
    assert "%json" not in refused.value.message


_COSTLY = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7000003}}}
_NAMED = {"name": "numbers", "strict": True, "schema": _COSTLY}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": _NAMED}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": _COSTLY}, "guided_json"),
        ({"structured_outputs": {"json": _COSTLY}}, "structured_outputs.json"),
        ({"regex": "[a"}, "regex"),
    ],
)
def test_a_grammar_that_a_worker_refuses_is_told_by_its_field(
    client: OpenAI, body: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=CHAT, messages=HI, max_tokens=40, stream=stream, extra_body=body
            )
        assert refused.value.param == param
        assert "start:" not in refused.value.message


def test_a_format_of_a_response_that_a_worker_refuses_is_told_by_its_field(client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "numbers", "schema": _COSTLY}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=CHAT, input="hi", text={"format": form})
    assert refused.value.param == "text.format.schema"


def test_a_call_streams_and_its_result_goes_back(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=CHAT, messages=HI, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        deltas = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    message = final.choices[0].message
    (call,) = message.tool_calls or []
    assert final.choices[0].finish_reason == "tool_calls"
    assert deltas[-1].arguments == call.function.arguments
    assert isinstance(call.function.parsed_arguments, Weather)

    answer = client.chat.completions.create(
        model=CHAT,
        messages=[
            *HI,
            message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
        tools=[TOOL],
        tool_choice="none",
        extra_body=SAYS_HELLO,
    )

    assert answer.choices[0].message.content == "hello, world"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_model_may_call_functions_by_itself(client: OpenAI, stream: bool, parallel: bool) -> None:
    arguments = '{"city": "Oslo", "degrees": 3}'
    call = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    says_calls = {"grammar": f"start: {json.dumps('Sure.' + chr(10) + call + chr(10) + call)}"}
    asked: dict[str, Any] = {"model": CHAT, "messages": HI, "tools": [TOOL]}
    asked |= {"parallel_tool_calls": parallel, "extra_body": says_calls}
    asked |= {"stop": [f"not {n}" for n in range(16)]}  # as many as a caller may have

    if stream:
        with client.chat.completions.stream(**asked) as events:
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.parse(**asked)

    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Sure.", "tool_calls")
    calls = choice.message.tool_calls or []
    called = [Weather(city="Oslo", degrees=3)] * (2 if parallel else 1)
    assert [c.function.parsed_arguments for c in calls] == called
    assert len({c.id for c in calls}) == len(calls)


def test_a_prompt_of_token_ids_is_completed(client: OpenAI) -> None:
    ids = [ord(letter) - ord("!") for letter in "Hi!"]  # as the byte-level alphabet numbers them

    completion = client.completions.create(model=CHAT, prompt=ids, echo=True, extra_body=SAYS_HELLO)

    assert completion.choices[0].text == "Hi!hello, world"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(ids)


def test_a_completion_streams_with_log_probabilities(deployment: Deployment) -> None:
    # Its types are not checked: they have no `finish_reason: null`, as all but the last chunk have.
    with (
        OpenAI(base_url=deployment.url, api_key="none") as client,
        client.completions.create(
            model=CHAT,
            prompt="hi",
            stream=True,
            stream_options={"include_usage": True},
            logprobs=2,
            extra_body=SAYS_HELLO,
        ) as stream,
    ):
        *chunks, last = list(stream)

    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.text for choice in choices) == "hello, world"
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    assert "".join(tokens) == "hello, world"
    assert last.usage is not None


def test_a_completion_has_the_older_log_probabilities(client: OpenAI) -> None:
    completion = client.completions.create(
        model=CHAT, prompt="hi", logprobs=2, extra_body=SAYS_HELLO
    )

    (choice,) = completion.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == choice.text == "hello, world"
    assert len(logprobs.tokens or ()) == len(logprobs.token_logprobs or ())
    assert all(2 <= len(tops) <= 3 for tops in logprobs.top_logprobs or ({},))
    assert logprobs.text_offset == sorted(logprobs.text_offset or ())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_is_scored_as_evaluations_ask_for_it(
    deployment: Deployment, stream: bool, max_tokens: int
) -> None:
    """By an echo with log-probabilities. Types are not checked: OpenAI's have no null among the
    numbers, which the API itself has for the first token."""
    asked: dict[str, Any] = {"model": CHAT, "max_tokens": max_tokens, "logprobs": 1, "echo": True}
    prompts = ["a fox ran", "a fox sat"]

    with OpenAI(base_url=deployment.url, api_key="none") as client:
        if stream:
            chunks = client.completions.create(prompt=prompts, **asked, stream=True)
            parts = [choice for chunk in chunks for choice in chunk.choices]
        else:
            parts = client.completions.create(prompt=prompts, **asked).choices

    for index, prompt in enumerate(prompts):
        own = [part for part in parts if part.index == index]
        columns = [part.logprobs for part in own if part.logprobs]
        tokens = [token for part in columns for token in part.tokens or ()]
        numbers = [number for part in columns for number in part.token_logprobs or ()]
        tops = [top for part in columns for top in part.top_logprobs or ()]
        offsets = [offset for part in columns for offset in part.text_offset or ()]
        generated = len(offsets) - bisect_left(offsets, len(prompt))
        scored = tokens[: len(tokens) - generated]
        assert generated == max_tokens
        assert "".join(scored) == prompt
        assert "".join(part.text for part in own).startswith(prompt)
        assert (own[-1].finish_reason, max_tokens) != ("stop", 0)
        assert all(prompt[offsets[i] :].startswith(token) for i, token in enumerate(scored))
        assert (numbers[0], tops[0]) == (None, None)
        assert all(number < 0 for number in numbers[1:])
        assert all(tops[i][tokens[i]] == numbers[i] for i in range(1, len(tokens)))


async def test_the_asyncio_client_does_the_same(deployment: Deployment) -> None:
    async with AsyncOpenAI(base_url=deployment.url, api_key="none") as client:
        async with client.chat.completions.stream(
            model=CHAT, messages=HI, response_format=Weather
        ) as stream:
            final = await stream.get_final_completion()
        completion = await client.completions.create(model=ECHO, prompt="a", max_tokens=1)
        models = [model.id async for model in client.models.list()]

    assert isinstance(final.choices[0].message.parsed, Weather)
    assert completion.choices[0].text == "97 "
    assert CHAT in models
