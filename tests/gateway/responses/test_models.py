"""Responses of a model, through OpenAI's library: JSON, functions, log-probabilities."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from rose_cli.demo.broker import EmbeddedBroker, find_redis_server
from tests.gateway.responses.calls import events_of, followed
from tests.support.chat_model import CONTEXT, write_chat_model
from tests.support.gateway import RunningDoor, running_door

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "of a place",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "maxLength": 5}},
        "required": ["place"],
        "additionalProperties": False,
    },
}


class Answer(BaseModel):
    right: bool
    digit: int


@pytest.fixture(scope="module")
def door(
    tmp_path_factory: pytest.TempPathFactory, _brokers: Callable[[bool], EmbeddedBroker]
) -> Iterator[RunningDoor]:
    """With a chat model that says noise, and with a grammar what it must."""
    folder = write_chat_model(tmp_path_factory.mktemp("model"))
    broker = _brokers(find_redis_server() is None)
    worker = {"engine": "rose", "model": str(folder)}
    with running_door(broker.url, f"models-{os.getpid()}", worker=worker) as door:
        yield door


@pytest.fixture
def openai(door: RunningDoor) -> Iterator[OpenAI]:
    with door.openai() as client:
        yield client


@pytest.fixture(scope="module")
def model(door: RunningDoor) -> str:
    with door.openai() as client:
        return next(iter(client.models.list())).id


def test_structured_output(openai: OpenAI, model: str) -> None:
    response = openai.responses.parse(
        model=model, input="Is it 7?", text_format=Answer, temperature=0, max_output_tokens=200
    )

    assert isinstance(response.output_parsed, Answer)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


def test_a_json_object(openai: OpenAI, model: str) -> None:
    response = openai.responses.create(
        model=model,
        input="JSON, please",
        text={"format": {"type": "json_object"}},
        extra_body={"seed": 1},
        max_output_tokens=2000,
    )

    assert response.output_text.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_function_is_called_and_answered(openai: OpenAI, model: str, choice: Any) -> None:
    asked = openai.responses.create(
        model=model,
        input="How is the weather?",
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_output_tokens=200,
    )

    (call,) = asked.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"place"}
    answered = openai.responses.create(
        model=model,
        previous_response_id=asked.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        tools=[WEATHER],
        tool_choice="none",
        max_output_tokens=5,
    )
    assert answered.output[0].type == "message"
    kinds = [item.type for item in openai.responses.input_items.list(answered.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_a_stream_of_a_call_is_accumulated(openai: OpenAI, model: str, door: RunningDoor) -> None:
    with openai.responses.stream(
        model=model,
        input="How is the weather?",
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=200,
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()

    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [
        item.arguments for item in final.output if item.type == "function_call"
    ]
    replayed = events_of(followed(door.url, final.id))
    assert [event["type"] for event in replayed] == [event.type for event in events]


def test_a_stream_is_resumed_by_the_library(openai: OpenAI, model: str) -> None:
    numbers = []
    with openai.responses.stream(
        model=model, input="Speak", background=True, text_format=Answer, max_output_tokens=200
    ) as stream:
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            numbers.append(event.sequence_number)
            if len(numbers) == 8:
                break

    with openai.responses.stream(
        response_id=response_id, starting_after=numbers[-1], text_format=Answer
    ) as rest:
        numbers += [event.sequence_number for event in rest]
        final = rest.get_final_response()

    assert numbers == list(range(len(numbers)))
    assert isinstance(final.output_parsed, Answer)


def test_log_probabilities(openai: OpenAI, model: str) -> None:
    response = openai.responses.create(
        model=model,
        input="Speak",
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        temperature=0,
        max_output_tokens=6,
    )

    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert len(part.logprobs) == 6
    first = part.logprobs[0]
    assert len(first.top_logprobs) == 2
    assert first.logprob == first.top_logprobs[0].logprob <= 0


def test_log_probabilities_come_with_the_deltas(openai: OpenAI, model: str) -> None:
    stream = openai.responses.create(
        model=model, input="Speak", top_logprobs=1, max_output_tokens=6, stream=True
    )

    events = list(stream)

    deltas = [event for event in events if event.type == "response.output_text.delta"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    said = [entry.to_dict() for delta in deltas for entry in delta.logprobs]
    assert [entry.to_dict() for entry in done.logprobs[: len(said)]] == said
    assert len(done.logprobs) == 6


def test_a_prompt_that_is_too_long_is_a_bad_request(openai: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        openai.responses.create(model=model, input="a" * CONTEXT)

    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_that_is_too_long_fails_in_the_background(openai: OpenAI, model: str) -> None:
    stream = openai.responses.create(model=model, input="a" * CONTEXT, stream=True, background=True)

    *_, last = stream

    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "invalid_prompt"


def test_without_a_limit_the_answer_may_fill_the_context(openai: OpenAI, model: str) -> None:
    response = openai.responses.create(
        model=model, input="a" * (CONTEXT - 200), extra_body={"ignore_eos": True}
    )

    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.total_tokens == CONTEXT
