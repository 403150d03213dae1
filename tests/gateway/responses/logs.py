"""Logs of jobs, what they were asked for, and the events that an event stream carries."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from rose.protocol import CancelledEvent, Event, FailedEvent, FinishedEvent, TokenEvent
from rose_gateway.responses.parameters import ResponseParameters
from rose_gateway.tools.tools import CallForm

JOB = "0-feed"
CREATED_AT, ENDED_AT = 1_790_000_000, 1_790_000_007

SHOWN: dict[str, Any] = {
    "model": "some-model",
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_tool_calls": None,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": None, "summary": None},
    "truncation": "disabled",
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_output_tokens": None,
    "metadata": {},
    "service_tier": "default",
    "store": True,
    "background": False,
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}


def parameters(*, background: bool = False, form: CallForm | None = None) -> ResponseParameters:
    return ResponseParameters({**SHOWN, "background": background}, form=form or CallForm())


def log_of(texts: Iterable[str], end: str = "eos") -> list[Event]:
    """One token a text. `end`: a reason to finish, "cancelled" or the code of a failure."""
    events: list[Event] = [
        TokenEvent(index=index, token_ids=(index,), text=text) for index, text in enumerate(texts)
    ]
    count = len(events)
    if end in ("eos", "stop", "length"):
        return [*events, FinishedEvent(index=count, reason=end, prompt_tokens=5)]
    if end == "cancelled":
        return [*events, CancelledEvent(index=count)]
    return [*events, FailedEvent(index=count, code=end, message="it went wrong")]


def parsed(frames: bytes) -> list[dict[str, Any]]:
    """The events of a stream, whose frames must agree with the data that they carry."""
    events = []
    for frame in frames.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in frame.split("\n"))
        data = json.loads(lines["data"])
        assert lines["event"] == data["type"]
        assert lines["id"] == str(data["sequence_number"])
        events.append(data)
    return events


_HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "}"}}\n</tool_call>'
_REQUIRED = '{"name": "f", "arguments": {"a": [1, "\\""]}}'

FORMS = {
    "text": (CallForm(), st.text()),
    "named": (CallForm("named", ("f",)), st.just('{"a": {"b": "\\u00e9"}}') | st.text()),
    "required": (
        CallForm("required", ("f", "g")),
        st.lists(st.just(_REQUIRED), max_size=3).map("\n".join) | st.text(),
    ),
    "hermes": (
        CallForm("hermes", ("f",)),
        st.lists(st.sampled_from([_HERMES, "<tool_call>", "Well. ", "é\n"]) | st.text()).map(
            "".join
        ),
    ),
    "thoughts": (
        CallForm("hermes", ("f",), "think"),
        st.lists(st.sampled_from(["<think>", "Hm.", "</think>", _HERMES]) | st.text()).map("".join),
    ),
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[ResponseParameters, list[Event]]:
    """What was asked for, and a log that answers it."""
    form, outputs = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    texts = pieces(draw(outputs), draw(st.lists(st.integers(0, 60), max_size=12)))
    ends = ["eos", "stop", "length", "cancelled", "crash_loop", "invalid_parameter"]
    log = log_of(texts, draw(st.sampled_from(ends)))
    return parameters(background=draw(st.booleans()), form=form), log


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text cut at these places; pieces may be empty."""
    places = [0, *sorted(cuts), max([len(text), *cuts])]
    return [text[start:end] for start, end in pairwise(places)]
