"""The events of a response are a pure function of the log, and as OpenAI's library reads them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack, structs
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import responses as types
from pydantic import BaseModel

from rose.engine_records import TokenLogprob
from rose.protocol import Event
from rose_gateway.responses.events import ResponseEvents, error_frame
from rose_gateway.responses.parameters import ResponseParameters
from rose_gateway.tools.tools import CallForm
from tests.gateway.responses.logs import (
    CREATED_AT,
    ENDED_AT,
    JOB,
    cases,
    log_of,
    parameters,
    parsed,
)

_TYPES: dict[str, type[BaseModel]] = {
    "response.created": types.ResponseCreatedEvent,
    "response.queued": types.ResponseQueuedEvent,
    "response.in_progress": types.ResponseInProgressEvent,
    "response.output_item.added": types.ResponseOutputItemAddedEvent,
    "response.content_part.added": types.ResponseContentPartAddedEvent,
    "response.output_text.delta": types.ResponseTextDeltaEvent,
    "response.output_text.done": types.ResponseTextDoneEvent,
    "response.content_part.done": types.ResponseContentPartDoneEvent,
    "response.reasoning_text.delta": types.ResponseReasoningTextDeltaEvent,
    "response.reasoning_text.done": types.ResponseReasoningTextDoneEvent,
    "response.function_call_arguments.delta": types.ResponseFunctionCallArgumentsDeltaEvent,
    "response.function_call_arguments.done": types.ResponseFunctionCallArgumentsDoneEvent,
    "response.output_item.done": types.ResponseOutputItemDoneEvent,
    "response.completed": types.ResponseCompletedEvent,
    "response.incomplete": types.ResponseIncompleteEvent,
    "response.failed": types.ResponseFailedEvent,
    "error": types.ResponseErrorEvent,
}


def replay(asked: ResponseParameters, log: list[Event], starting_after: int | None = -1) -> bytes:
    events = ResponseEvents(asked, JOB, CREATED_AT, starting_after=starting_after)
    return events.begin() + b"".join(events.feed(event, ENDED_AT) for event in log)


def _said(item: dict[str, Any]) -> tuple[str, str]:
    text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
    return item["id"], text


def names(frames: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in parsed(frames)]


@given(cases())
def test_every_event_is_valid_for_the_library_and_its_accumulator_follows(
    case: tuple[ResponseParameters, list[Event]],
) -> None:
    events = parsed(replay(*case))

    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        typed = _TYPES[event["type"]].model_validate(event)
        state.handle_event(typed)

    snapshot = state._ResponseStreamState__current_snapshot.output
    output = events[-1]["response"]["output"]
    kept = [(one.to_dict(), item) for one, item in zip(snapshot, output, strict=True)]
    # It leaves thoughts where they began.
    assert all(_said(one) == _said(item) for one, item in kept if item["type"] != "reasoning")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    # and: deltas add up to what is done, and to the final output
    grown: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            grown[index] = grown.get(index, "") + event["delta"]
        elif event["type"] in ("response.output_text.done", "response.reasoning_text.done"):
            assert event["text"] == grown.get(event["output_index"], "")
        elif event["type"] == "response.function_call_arguments.done":
            assert event["arguments"] == grown.get(event["output_index"], "")
    for index, item in enumerate(output):
        assert _said(item)[1] == grown.get(index, "")


@given(cases(), st.integers(-1, 40))
def test_a_replay_from_any_number_is_the_rest_of_the_whole(
    case: tuple[ResponseParameters, list[Event]], starting_after: int
) -> None:
    whole = replay(*case)

    rest = replay(*case, starting_after=starting_after)

    assert whole.endswith(rest)
    assert parsed(rest) == parsed(whole)[starting_after + 1 :]


@given(cases(), st.data())
def test_a_replay_that_is_interrupted_anywhere_goes_on_with_the_same_events(
    case: tuple[ResponseParameters, list[Event]], data: st.DataObject
) -> None:
    asked, log = case
    first = ResponseEvents(asked, JOB, CREATED_AT)
    seen = first.begin()
    for event in log[: data.draw(st.integers(0, len(log)))]:
        seen += first.feed(event, ENDED_AT)

    rest = replay(asked, log, starting_after=first.last_number)

    assert seen + rest == replay(asked, log)


@given(cases())
def test_the_response_alone_is_that_of_the_last_event(
    case: tuple[ResponseParameters, list[Event]],
) -> None:
    asked, log = case
    quiet = ResponseEvents(asked, JOB, CREATED_AT, starting_after=None)
    frames = quiet.begin() + b"".join(quiet.feed(event, ENDED_AT) for event in log)

    assert frames == b""
    assert quiet.ended == parsed(replay(asked, log))[-1]["response"]


def test_the_events_of_a_text_come_in_their_order() -> None:
    frames = replay(parameters(), log_of(["Hel", "lo", ""]))

    assert names(frames) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    final = parsed(frames)[-1]["response"]
    assert final["id"] == f"resp_{JOB}"
    assert (final["created_at"], final["completed_at"]) == (CREATED_AT, ENDED_AT)
    assert final["output"][0]["id"] == f"msg_{JOB}"
    assert final["usage"]["total_tokens"] == 5 + 3


def test_the_events_of_a_call_come_in_their_order() -> None:
    frames = replay(parameters(form=CallForm("named", ("weather",))), log_of(['{"a"', ": 1}"]))

    assert names(frames)[2:] == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    (item,) = parsed(frames)[-1]["response"]["output"]
    assert item == {
        "id": f"fc_{JOB}_0",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{JOB}_0",
        "name": "weather",
        "arguments": '{"a": 1}',
    }


@pytest.mark.parametrize(
    ("end", "last", "status", "item_status"),
    [
        ("eos", "completed", "completed", "completed"),
        ("length", "incomplete", "incomplete", "incomplete"),
        ("cancelled", "incomplete", "cancelled", "incomplete"),
        ("crash_loop", "failed", "failed", "incomplete"),
    ],
)
def test_a_response_ends_as_its_job_did(end: str, last: str, status: str, item_status: str) -> None:
    frames = replay(parameters(), log_of(["a"], end))

    assert names(frames)[-1] == last
    response = parsed(frames)[-1]["response"]
    assert response["status"] == status
    assert response["output"][0]["status"] == item_status
    assert (response["completed_at"] is None) == (end != "eos")


def test_the_end_says_why() -> None:
    cut = parsed(replay(parameters(), log_of(["a"], "length")))[-1]["response"]
    failed = parsed(replay(parameters(), log_of([], "prompt_too_long")))[-1]["response"]

    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert failed["error"] == {
        "code": "context_length_exceeded",
        "message": "it went wrong",
        "param": "input",
        "type": "prompt_too_long",
    }
    assert failed["output"] == []


@pytest.mark.parametrize("end", ["length", "stop"])
@pytest.mark.parametrize(
    ("kind", "said", "items"),
    [
        ("required", '{"name": "f", "argu', []),
        ("required", '{"name": "f", "arguments": {"a', ["function_call"]),
        ("named", '{"a', ["function_call"]),
        ("hermes", 'Well. <tool_call>{"name": "f"', ["message"]),
    ],
)
def test_a_response_that_ends_within_a_call_is_incomplete(
    end: str, kind: str, said: str, items: list[str]
) -> None:
    # when
    form = CallForm.from_record([kind, "f"])
    response = parsed(replay(parameters(form=form), log_of(list(said), end)))[-1]["response"]
    # then
    reason = {"length": "max_output_tokens", "stop": None}[end]
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": reason},
    )
    assert [item["type"] for item in response["output"]] == items
    assert "tool_call" not in str([item.get("content") for item in response["output"]])
    if "function_call" in items:
        assert response["output"][0]["status"] == "incomplete"


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    response = parsed(replay(parameters(), log_of([])))[-1]["response"]

    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == ""


def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    *told, end = log_of(["", "é", ""])
    log = [*(structs.replace(event, logprobs=(TokenLogprob(-0.5, ()),)) for event in told), end]
    events = ResponseEvents(
        parameters(),
        JOB,
        CREATED_AT,
        logprobs=lambda packed: {"token": str(msgpack.decode(packed)[0])},
    )

    frames = events.begin() + b"".join(events.feed(event) for event in log)

    deltas = [event for event in parsed(frames) if event["type"].endswith("text.delta")]
    assert [delta["logprobs"] for delta in deltas] == [[{"token": "0"}, {"token": "1"}]]
    done = next(event for event in parsed(frames) if event["type"].endswith("text.done"))
    assert done["logprobs"] == [{"token": "0"}, {"token": "1"}, {"token": "2"}]


def test_an_error_has_the_number_of_the_event_before_it() -> None:
    frame = error_frame(7, "Redis is away", "broker_unavailable").decode()

    assert frame.startswith("event: error\ndata: ")
    assert '"sequence_number":7' in frame


def test_a_thought_is_an_item_of_its_own_and_its_tokens_are_counted() -> None:
    # given
    form = CallForm("hermes", ("f",), "think")
    log = log_of(["<think>", "\nH", "m.", "</think>", "\n\n", "Hi"])
    # when
    events = parsed(replay(parameters(form=form), log))
    # then
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    thought, message = response["output"]
    assert (thought["type"], thought["id"], thought["status"]) == (
        "reasoning",
        f"rs_{JOB}_0",
        "completed",
    )
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Hi"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
