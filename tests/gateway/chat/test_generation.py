"""What only a real model shows: grammars, calls of functions, log-probabilities.

The model is random: what it says beyond its grammar is noise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from rose_cli.demo.broker import EmbeddedBroker, find_redis_server
from tests.roseinfer.models import byte_tokenizer
from tests.support.chat_model import write_chat_model
from tests.support.gateway import running_door

ASK: list[Any] = [{"role": "user", "content": "The weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["place", "days"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False},
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}


@pytest.fixture(scope="module")
def asked(
    _brokers: Callable[[bool], EmbeddedBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OpenAI, str]]:
    """A client, and the name of the model."""
    broker = _brokers(find_redis_server() is None)
    model = write_chat_model(tmp_path_factory.mktemp("chat-model"))
    worker = {"engine": "rose", "model": str(model), "max_batch_size": 8, "lease_s": 20}
    with (
        running_door(broker.url, f"generation-{model.parent.name}", worker=worker) as door,
        door.openai(timeout=120) as ai,
    ):
        yield ai, ai.models.list().data[0].id


def is_weather(arguments: str) -> bool:
    made = json.loads(arguments)
    return made["place"] in ("Oslo", "Rome") and made["days"] in (1, 2) and len(made) == 2


def test_a_named_function_is_called(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked
    choice: Any = {"type": "function", "function": {"name": "weather"}}

    answer = ai.chat.completions.create(
        model=model, messages=ASK, tools=[TIME, WEATHER], tool_choice=choice
    )

    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "weather"
    assert is_weather(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None


def test_calls_that_are_required_come_as_deltas(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked

    with ai.chat.completions.stream(
        model=model, messages=ASK, tools=[WEATHER], tool_choice="required"
    ) as stream:
        events = list(stream)
        answer = stream.get_final_completion()

    calls = answer.choices[0].message.tool_calls or []
    assert calls
    for call in calls:
        assert call.function.name == "weather"
        assert is_weather(call.function.arguments)
        assert call.function.parsed_arguments == json.loads(call.function.arguments)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.index for event in done] == list(range(len(calls)))
    assert answer.choices[0].finish_reason == "tool_calls"


def test_one_call_is_all_if_calls_are_not_parallel(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked

    answer = ai.chat.completions.create(
        model=model,
        messages=ASK,
        tools=[WEATHER, TIME],
        tool_choice="required",
        parallel_tool_calls=False,
        n=4,
        seed=3,
    )

    for choice in answer.choices:
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        if call.function.name == "weather":
            assert is_weather(call.function.arguments)
        else:
            assert json.loads(call.function.arguments) == {}


def test_a_conversation_goes_on_with_the_result(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked
    first = ai.chat.completions.create(
        model=model,
        messages=ASK,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (call,) = first.choices[0].message.tool_calls or ()
    said: Any = first.choices[0].message

    answer = ai.chat.completions.create(
        model=model,
        messages=[*ASK, said, {"role": "tool", "tool_call_id": call.id, "content": "rain"}],
        tools=[WEATHER],
        tool_choice="none",
        max_tokens=3,
    )

    assert answer.usage is not None
    assert first.usage is not None
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens > 20


SAID = (
    "Sure.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"place": "Oslo", "days": 1}}\n</tool_call>'
)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_may_call_in_the_format_of_its_template(
    asked: tuple[OpenAI, str], stream: bool, parallel: bool
) -> None:
    ai, model = asked
    request: dict[str, Any] = {
        "model": model,
        "messages": ASK,
        "tools": [WEATHER],
        "parallel_tool_calls": parallel,
        "extra_body": {"regex": re.escape(SAID) + f"({re.escape(SAID)})?"},
    }

    if stream:
        with ai.chat.completions.stream(**request) as events:
            answer: Any = events.get_final_completion()
    else:
        answer = ai.chat.completions.create(**request)

    message = answer.choices[0].message
    calls = message.tool_calls
    assert message.content.startswith("Sure.")
    assert "<tool_call>" not in message.content
    assert len(calls) == (1 if not parallel else len(calls))
    for call in calls:
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"place": "Oslo", "days": 1}
    assert answer.choices[0].finish_reason == "tool_calls"


class Place(BaseModel):
    name: str
    warm: bool


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept(asked: tuple[OpenAI, str], stream: bool) -> None:
    ai, model = asked
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]{1,8}$"},
            "warm": {"type": "boolean"},
        },
        "required": ["name", "warm"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    request: dict[str, Any] = {"model": model, "messages": ASK, "response_format": wanted}

    if stream:
        chunks = ai.chat.completions.create(**request, stream=True)
        text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    else:
        text = ai.chat.completions.create(**request).choices[0].message.content or ""

    place = Place.model_validate_json(text)
    assert 1 <= len(place.name) <= 8


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_come_with_each_token(asked: tuple[OpenAI, str], stream: bool) -> None:
    ai, model = asked
    request: dict[str, Any] = {
        "model": model,
        "messages": ASK,
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 6,
        "temperature": 0,
        "extra_body": {"regex": "[a-z]{20}"},
    }

    if stream:
        chunks = ai.chat.completions.create(**request, stream=True)
        entries = [
            entry
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs
            for entry in choice.logprobs.content or ()
        ]
    else:
        logprobs = ai.chat.completions.create(**request).choices[0].logprobs
        assert logprobs is not None
        entries = logprobs.content or []

    assert len(entries) == 6
    assert all(bytes(entry.bytes or ()).decode() == entry.token for entry in entries)
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= entry.top_logprobs[0].logprob <= 0


def test_completions_have_the_older_log_probabilities(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked

    answer = ai.completions.create(
        model=model, prompt="Once", logprobs=2, max_tokens=5, extra_body={"regex": "[a-z]{20}"}
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == 5
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert all(1 <= len(tops) <= 2 for tops in logprobs.top_logprobs)
    assert logprobs.text_offset == sorted(logprobs.text_offset or ())


def test_token_ids_are_echoed_as_text(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked
    ids = byte_tokenizer().encode("Once, twice")

    answer = ai.completions.create(model=model, prompt=ids, max_tokens=1, echo=True)

    assert answer.choices[0].text.startswith("Once, twice")


def test_stops_end_the_text_and_are_cut_from_it(asked: tuple[OpenAI, str]) -> None:
    ai, model = asked
    (letter,) = byte_tokenizer().encode("a")
    bias = {str(letter): 100}  # all that it says
    free = ai.completions.create(
        model=model, prompt="x", max_tokens=4, temperature=0, logit_bias=bias
    ).choices[0]

    stopped = ai.completions.create(
        model=model,
        prompt="x",
        max_tokens=4,
        temperature=0,
        logit_bias=bias,
        stop=[free.text[1:3]],
    ).choices[0]

    assert (free.text, free.finish_reason) == ("aaaa", "length")
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
