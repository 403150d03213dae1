"""Jobs whose answers are numbers: what is sent, what it costs, and what comes back."""

from typing import Any

import pytest

from rose.engine_records import Numbers, float32
from rose.errors import InvalidParameter, MalformedMessage
from rose.protocol import (
    FinishedEvent,
    Priority,
    decode_event,
    decode_job,
    encode_event,
    encode_job,
)
from rose.protocol.calls import Submission
from rose.protocol.codec import MAX_EVENT_BYTES, most_numbers
from rose.protocol.jobs import MAX_INPUTS, JobSpec, job_from


def job(prompt: object, **encode: Any) -> JobSpec:
    return job_from({"id": "0-a", "prompt": prompt, "encode": encode})


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("a text", ("a text",)),
        ([5, 6], ((5, 6),)),
        (["a", "b"], ("a", "b")),
        (["a", [5, 6]], ("a", (5, 6))),
        ([[5, 6], "a"], ((5, 6), "a")),
    ],
)
def test_inputs_are_texts_and_token_ids(prompt: object, inputs: object) -> None:
    sent = job(prompt, dimensions=3)

    assert sent.inputs == inputs
    assert sent.task == "embed"
    assert decode_job(encode_job(sent)) == sent


@pytest.mark.parametrize(
    ("prompt", "encode", "message"),
    [
        (["a", "b"], None, "several texts is only for a job with `encode`"),
        ([[1], [2]], None, "several texts is only for a job with `encode`"),
        ([{"role": "user", "content": "x"}], {}, "has no chat messages"),
        ([], {}, "prompt: must be"),
        ([""], {}, "prompt: must be"),
        (["a", []], {}, "prompt: must be"),
        (["a"] * (MAX_INPUTS + 1), {}, f"up to {MAX_INPUTS}"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"task": "score"}, "needs at least one"),
        ("a", {"queries": ["q"]}, "for the task score alone"),
        ("a", {"task": "score", "queries": ["q"], "dimensions": 3}, "for the task embed alone"),
        (["a", "b", "c"], {"task": "score", "queries": ["q", "r"]}, "there are 2 for 3 inputs"),
        ([[1, 2]], {"task": "score", "queries": ["q"]}, "no token ids"),
        ("a", {"code": "x"}, "encode"),
    ],
)
def test_what_cannot_be_is_refused(prompt: object, encode: object, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        job_from({"id": "0-a", "prompt": prompt, "encode": encode})


def test_such_a_job_costs_its_inputs_alone() -> None:
    texts = job(["12345678", [1, 2, 3]])
    pairs = job(["12345678", "1234"], task="score", queries=["1234"])

    assert texts.token_estimate == 3 + 3
    assert pairs.token_estimate == 3 + 2 + 2


def test_where_texts_are_cut_none_is_too_long() -> None:
    submissions = [
        Submission.of(spec, encode_job(spec), Priority.NORMAL)
        for spec in (job("four"), job([1, 2]), job("four", truncate=True), job([1], truncate=True))
    ]

    sizes = [(one.prompt_tokens, one.prompt_bytes) for one in submissions]

    assert sizes == [(None, 4), (2, None), (None, None), (None, None)]


def test_numbers_survive_the_wire() -> None:
    numbers = Numbers(2, float32([0.5, -1.0, 2.0, 3.25]))
    event = FinishedEvent(index=0, reason="stop", prompt_tokens=4, numbers=numbers)

    (decoded,) = [decode_event(encode_event(event))]

    assert isinstance(decoded, FinishedEvent)
    assert decoded == event
    assert decoded.numbers is not None
    assert [row.tolist() for row in decoded.numbers.rows()] == [[0.5, -1.0], [2.0, 3.25]]
    assert decoded.numbers.row_count == 2
    assert b"".join(decoded.numbers.packed()) == numbers.data


def test_an_event_holds_as_many_numbers_as_it_may() -> None:
    numbers = Numbers(1, bytes(4 * most_numbers()))
    event = FinishedEvent(index=0, reason="stop", prompt_tokens=2**31, numbers=numbers)

    raw = encode_event(event)

    assert MAX_EVENT_BYTES - 8192 < len(raw) <= MAX_EVENT_BYTES
    assert decode_event(raw) == event


def test_numbers_that_are_no_rows_are_no_event() -> None:
    event = FinishedEvent(index=0, reason="stop", prompt_tokens=4, numbers=Numbers(2, b"1234"))

    with pytest.raises(MalformedMessage, match="no rows of 2"):
        decode_event(encode_event(event))
