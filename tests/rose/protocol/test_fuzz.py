"""Whatever the bytes, a parser gives a value or an error of ours, in bounded memory."""

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import (
    BrokerUnavailable,
    InvalidParameter,
    InvalidRequest,
    JobNotFound,
    JobTooLarge,
    MalformedMessage,
    QueueFull,
    RoseError,
    TenantLimited,
)
from rose.protocol import MAX_JOB_BYTES, decode_event, decode_job, encode_job, readable_job_id
from rose.protocol.calls import NotTaken, Taken, submitted_id, taken
from rose.protocol.status import (
    STATUS_FIELDS,
    JobStatus,
    QueueStatus,
    read_queue_status,
    read_standing,
    read_status,
)
from tests.fuzz.messages import Fuzzer, large_bombs, small_bombs

#: A megabyte of the densest msgpack is a million small objects; a report for each would be more.
_MAX_MEMORY = 150 * 1024 * 1024

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.sampled_from(["0-a", "tokens", "finished", "failed", "user", 0, 1, 2**31 - 1])
)
_nested = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def shaped(*fields: str) -> st.SearchStrategy[bytes]:
    """A map with these fields, of any kind."""
    maps = st.fixed_dictionaries({}, optional=dict.fromkeys(fields, _nested))
    return maps.map(msgpack.packb)


_job_shaped = shaped(
    "v", "id", "prompt", "sampling", "deadline_ms", "metadata", "priority", "tools"
)
_event_shaped = shaped(
    *("type", "index", "token_ids", "text", "reason", "prompt_tokens", "cached_tokens"),
    *("code", "message"),
)
_fuzzer = Fuzzer(1, large_every=10**9)
_damaged = st.sampled_from([make() for _ in range(2000) for make in (_fuzzer.job, _fuzzer.event)])
_bytes = st.binary(max_size=300) | _nested.map(msgpack.packb) | _damaged


@given(_bytes | _job_shaped)
def test_a_job_is_read_or_refused(raw: bytes) -> None:
    job_id = readable_job_id(raw)
    with contextlib.suppress(MalformedMessage, InvalidParameter, JobTooLarge):
        job = decode_job(raw)
        assert job.id == job_id
        assert encode_job(decode_job(encode_job(job))) == encode_job(job)


@given(_bytes | _event_shaped)
def test_an_event_is_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        event = decode_event(raw)
        assert event.cursor >= event.index >= 0


@pytest.mark.parametrize("decode", [decode_job, decode_event])
@pytest.mark.parametrize("bomb", small_bombs(), ids=lambda bomb: bomb[:12].hex())
def test_a_promise_of_much_more_is_refused(decode: Callable[[bytes], Any], bomb: bytes) -> None:
    with pytest.raises(RoseError):
        decode(bomb)
    readable_job_id(bomb)


@pytest.mark.parametrize("number", range(len(large_bombs())))
def test_a_megabyte_of_nonsense_costs_bounded_memory(number: int) -> None:
    # given
    raw = large_bombs()[number]()
    tracemalloc.start()
    # when
    for decode in (decode_job, decode_event):
        with contextlib.suppress(RoseError):
            decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # then
    assert peak < _MAX_MEMORY
    assert len(raw) > MAX_JOB_BYTES / 2 or number == len(large_bombs()) - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [-1] * 100_000},
        {"prompt": [{"role": "user", "content": 1}] * 30_000},
        {"sampling": {"stop": [1] * 100_000}},
        {"sampling": {"stop_token_ids": [-1] * 100_000}},
        {"metadata": {f"{i:x}": [] for i in range(2000)}},
        {"k" * 100_000: 1},
        {f"{i:x}": 1 for i in range(2000)},
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_a_report_is_short_however_much_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter) as caught:
        decode_job(msgpack.packb({"id": "0-a", "prompt": "x"} | wrong))
    assert len(str(caught.value)) < 1000


WORDS = [
    *(b"FULL", b"TOO_LONG", b"BLOCKED", b"LIMITED", b"NO_ADAPTER", b"DELETED"),
    *(b"jobs", b"7"),
]


@given(st.lists(st.binary(max_size=20) | st.sampled_from(WORDS)))
def test_any_reply_to_submit_is_an_id_or_an_error(reply: list[bytes]) -> None:
    with contextlib.suppress(
        QueueFull, TenantLimited, InvalidRequest, BrokerUnavailable, MalformedMessage
    ):
        assert isinstance(submitted_id(reply), str)


@given(st.binary(max_size=40) | st.from_regex(rb"TAKEN( [0-9]{1,3}| x){0,5}", fullmatch=True))
def test_any_reply_to_take_is_an_outcome_or_an_error(reply: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        assert isinstance(taken(reply, "take"), Taken | NotTaken)


_values = (
    st.none()
    | st.binary(max_size=12)
    | st.sampled_from([b"0", b"12", b"-1", b"1.5", b"queued", b"9" * 5000])
)


@given(st.lists(_values, min_size=len(STATUS_FIELDS), max_size=len(STATUS_FIELDS)))
def test_any_state_of_a_job_is_a_status_or_an_error(fields: list[bytes | None]) -> None:
    with contextlib.suppress(JobNotFound, MalformedMessage):
        assert isinstance(read_status("0-a", fields), JobStatus)
    with contextlib.suppress(MalformedMessage):
        status, tokens = read_standing("0-a", fields[:2])
        assert status is None or isinstance(tokens, int)


@given(
    tokens=_values,
    name=_values,
    context=_values,
    consumer=st.binary(max_size=9),
    slots=_values.map(lambda value: value or b""),
)
def test_any_state_of_a_queue_is_a_status_or_an_error(
    tokens: bytes | None, name: bytes | None, context: bytes | None, consumer: bytes, slots: bytes
) -> None:
    held: list[Any] = [3, b"5-0", [[consumer, b"2", 40, slots]]]
    facts = [name, tokens, context, context, tokens, name, name, name, name, context]
    streams, counts = [held, [0, b"", []], [1, b"", []], [0, b"", []]], [b"0", b"2", tokens or b"0"]
    reply = [streams, 4, tokens or b"0", facts, 7, tokens or b"0", counts]
    with contextlib.suppress(MalformedMessage):
        status = read_queue_status("q", [reply, reply])
        assert isinstance(status, QueueStatus)
        assert (status.running, status.dead_letters) == (4, 8)
