"""Each rule notices its violation, and is silent where all is as it should be."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.http.check import Rule, check_jobs, check_received, check_replay
from tests.chaos.http.requests import Received, Request

Change = Callable[[list[Any]], None]

RESPONSE = Request(0, "response", "ab", 3, ())
CHAT = Request(1, "chat", "ab", 3, ())


def received_of(request: Request, frames: list[tuple[str, Any]]) -> Received:
    return Received(request, "0-a", [(id_, json.dumps(data)) for id_, data in frames], ended=True)


def response_frames() -> list[tuple[str, Any]]:
    content = [{"type": "output_text", "text": "97 98 97 "}]
    last = {"output": [{"content": content}], "usage": {"output_tokens": 3}}
    events: list[dict[str, Any]] = [
        {"type": "response.created"},
        {"type": "response.output_text.delta", "delta": "97 98 "},
        {"type": "response.output_text.delta", "delta": "97 "},
        {"type": "response.incomplete", "response": last},
    ]
    return [(str(n), event | {"sequence_number": n}) for n, event in enumerate(events)]


def chat_frames() -> list[tuple[str, Any]]:
    def chunk(content: str, reason: str | None = None) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": content}, "finish_reason": reason}]}

    return [
        ("0-0", chunk("")),
        ("2-0", chunk("97 98 ")),
        ("3-0", chunk("97 ")),
        ("3-1", chunk("", "length")),
        ("3-2", {"choices": [], "usage": {"completion_tokens": 3}}),
    ]


def changed(place: int, **fields: Any) -> Change:
    def change(frames: list[Any]) -> None:
        id_, data = frames[place]
        frames[place] = id_, data | fields

    return change


def swap(frames: list[Any]) -> None:
    frames[1], frames[2] = frames[2], frames[1]


def another_number(frames: list[Any]) -> None:
    frames[1] = "7", frames[1][1]


def wrong_usage(frames: list[Any]) -> None:
    frames[-1][1]["response"]["usage"]["output_tokens"] = 4


RESPONSE_FAULTS: list[tuple[Change, Rule]] = [
    (lambda frames: frames.pop(1), Rule.LOST),
    (lambda frames: frames.insert(1, frames[1]), Rule.DOUBLED),
    (swap, Rule.REORDERED),
    (another_number, Rule.REORDERED),
    (changed(1, delta="97 99 "), Rule.SEAMS),
    (changed(3, type="response.failed"), Rule.ENDS),
    (wrong_usage, Rule.ENDS),
]
CHAT_FAULTS: list[tuple[Change, Rule]] = [
    (lambda frames: frames.pop(1), Rule.SEAMS),
    (lambda frames: frames.insert(1, frames[1]), Rule.DOUBLED),
    (swap, Rule.REORDERED),
    (lambda frames: frames.pop(3), Rule.ENDS),
    (lambda frames: frames.pop(4), Rule.ENDS),
    (changed(4, usage={"completion_tokens": 2}), Rule.ENDS),
]


@pytest.mark.parametrize(
    ("call", "frames", "change", "rule"),
    [
        *((RESPONSE, response_frames(), *fault) for fault in RESPONSE_FAULTS),
        *((CHAT, chat_frames(), *fault) for fault in CHAT_FAULTS),
    ],
)
def test_what_is_wrong_with_an_answer_is_noticed(
    call: Request, frames: list[Any], change: Change, rule: Rule
) -> None:
    # given
    assert list(check_received(received_of(call, frames))) == []
    # when
    change(frames)
    # then
    assert rule in {finding.rule for finding in check_received(received_of(call, frames))}


def test_a_stream_without_its_end_is_lost() -> None:
    # given
    received = received_of(CHAT, chat_frames())
    # when
    received.ended = False
    # then
    assert [finding.rule for finding in check_received(received)] == [Rule.LOST]


def test_an_answer_that_is_not_documented_is_noticed() -> None:
    # given
    received = received_of(CHAT, chat_frames())
    # when
    received.undocumented.append("500 internal error")
    # then
    assert [finding.rule for finding in check_received(received)] == [Rule.ANSWERS]


def test_each_request_is_one_job() -> None:
    # given
    one, other = Received(RESPONSE, "0-a"), Received(CHAT, "0-b")
    # then
    assert list(check_jobs([one, other], 2)) == []
    assert [finding.rule for finding in check_jobs([one, other], 3)] == [Rule.DOUBLED]
    assert [finding.rule for finding in check_jobs([one, other], 1)] == [Rule.LOST]
    assert [finding.rule for finding in check_jobs([one, one], 2)] == [Rule.DOUBLED]


def test_a_replay_brings_the_same_events_from_one_on() -> None:
    # given
    received = received_of(CHAT, chat_frames())
    # then
    assert list(check_replay(received, -1, received.frames)) == []
    assert list(check_replay(received, 2, received.frames[3:])) == []
    for replayed in (
        received.frames[2:],
        received.frames[3:4],
        [*received.frames[3:-1], ("3-2", "{}")],
    ):
        assert [finding.rule for finding in check_replay(received, 2, replayed)] == [Rule.REPLAYS]
