"""A job by the Durable Streams protocol, where its conformance suite (tests/durable_streams) does
not look: a job's own events, its end, long answers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import httpx2 as httpx
import pytest

from rose.protocol import Event, FailedEvent, FinishedEvent, TokenEvent, calls
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.authentication import RequestContext, enter_request
from rose_gateway.jobs import job_stream
from rose_gateway.jobs.job_group import JobGroup
from rose_gateway.jobs.job_stream import JobStream, Offset, Part, View
from rose_gateway.metrics import Metrics
from rose_gateway.pacing import LoopPacer
from rose_gateway.routes import job_streams
from rose_producer import AsyncJob, Client, JobRecord
from tests.support.bench import Bench, to_append, wait_until
from tests.support.echo import SLOW, echoed_text
from tests.support.gateway import Deployment, running_gateway

COMPLETION = {"model": "null", "prompt": "Hi", "max_tokens": 5}
TOKENS = 5


def read(origin: str, job_id: str, view: str, **query: str) -> httpx.Response:
    return httpx.get(f"{origin}/v1/jobs/{job_id}/stream/{view}", params=query, timeout=90)


def sent_pairs(body: str) -> list[tuple[str, Any]]:
    """The data of each data event, and what the control event after it says."""
    pairs: list[tuple[str, Any]] = []
    data = ""
    for event in body.split("\n\n"):
        name, *lines = event.split("\n")
        values = [line.removeprefix("data:").removeprefix(" ") for line in lines]
        if name == "event: data":
            data = "\n".join(values)
        elif name == "event: control":
            pairs.append((data, json.loads("\n".join(values))))
            data = ""
    return pairs


@pytest.fixture
def bench(broker: EmbeddedBroker, queue: str) -> Iterator[Bench]:
    bench = Bench(broker, queue)
    yield bench
    bench.close()


@pytest.fixture
def origin(bench: Bench, broker: EmbeddedBroker) -> Iterator[str]:
    """Of a gateway whose only worker is the bench."""
    queue = bench.partition.queue
    with running_gateway(broker.url, queue, heartbeat_s=1, allowed_origins="*") as gateway:
        yield gateway.url.removesuffix("/v1")


def test_a_reader_goes_on_after_any_token(deployment: Deployment) -> None:
    answer = deployment.post("/completions", json=COMPLETION)
    job_id = answer.headers["x-rose-job-id"]
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        logged = json.loads(json.dumps([event.as_json() for event in client.job(job_id).stream()]))
    assert [event["type"] for event in logged] == ["tokens"] * TOKENS + ["finished"]

    for count in range(TOKENS + 1):
        offset = f"{count:010d}"
        text = read(deployment.origin, job_id, "text", offset=offset)
        events = read(deployment.origin, job_id, "events", offset=offset)

        assert text.text == "".join(event["text"] for event in logged[count:-1])
        assert events.json() == logged[count:]
        assert text.headers["stream-next-offset"] == f"{TOKENS:010d}"
        assert events.headers["stream-next-offset"] == f"{TOKENS:010d}_end"
        for got in (text, events):
            assert got.headers["stream-closed"] == got.headers["stream-up-to-date"] == "true"
            assert got.headers["x-rose-job-status"] == "finished"
            assert got.headers["x-rose-job-id"] == job_id
            assert got.headers["cache-control"] == "private, no-cache"


def test_who_has_the_end_is_told_so(deployment: Deployment) -> None:
    job_id = deployment.post("/completions", json=COMPLETION).headers["x-rose-job-id"]

    for view, end, nothing in [("text", "0000000005", ""), ("events", "0000000005_end", "[]")]:
        for offset in (end, "now"):
            got = read(deployment.origin, job_id, view, offset=offset)
            assert (got.status_code, got.text) == (200, nothing)
            assert got.headers["stream-next-offset"] == end
            assert got.headers["stream-closed"] == "true"
        polled = read(deployment.origin, job_id, view, offset=end, live="long-poll")
        assert (polled.status_code, polled.headers["stream-closed"]) == (204, "true")
        ((data, control),) = sent_pairs(
            read(deployment.origin, job_id, view, offset=end, live="sse").text
        )
        assert data == ""
        assert control == {
            "streamNextOffset": end,
            "upToDate": True,
            "streamClosed": True,
            "jobStatus": "finished",
        }


@pytest.mark.parametrize(
    ("view", "offset", "code"),
    [
        ("text", "0000000005_end", "invalid_value"),
        ("text", "5", "invalid_value"),
        ("events", "0000000004_end", "invalid_value"),
        ("events", "\u0660" * 10, "invalid_value"),
        ("text", "0000000006", "invalid_cursor"),
        ("events", "0000000006", "invalid_cursor"),
    ],
)
@pytest.mark.parametrize("live", [{}, {"live": "long-poll"}, {"live": "sse"}])
def test_an_offset_that_is_none_of_the_job_s_is_refused(
    deployment: Deployment, view: str, offset: str, code: str, live: dict[str, str]
) -> None:
    job_id = deployment.post("/completions", json=COMPLETION).headers["x-rose-job-id"]

    refused = read(deployment.origin, job_id, view, offset=offset, **live)

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert refused.headers["x-content-type-options"] == "nosniff"


def test_each_choice_is_a_stream(deployment: Deployment) -> None:
    body = {**COMPLETION, "n": 2}
    job_id = deployment.post("/completions", json=body).headers["x-rose-job-id"]

    for choice in (job_id, f"{job_id}.1"):
        got = read(deployment.origin, choice, "text")
        assert got.text == echoed_text("Hi", TOKENS)
        assert got.headers["stream-closed"] == "true"


def test_a_reader_learns_that_a_job_was_cancelled(start_deployment: Any) -> None:
    deployment = start_deployment(worker=SLOW)
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        job = client.submit("Hi", max_new_tokens=100_000)
        wait_until(lambda: job.status().tokens)
        with httpx.stream(
            "GET",
            f"{deployment.url}/jobs/{job.id}/stream/events",
            params={"offset": "now", "live": "sse"},
            timeout=90,
        ) as answer:
            job.cancel()
            *_, (data, control) = sent_pairs("".join(answer.iter_text()))

    assert json.loads(data)[-1]["type"] == "cancelled"
    assert (control["streamClosed"], control["jobStatus"]) == (True, "cancelled")
    head = httpx.head(f"{deployment.url}/jobs/{job.id}/stream/text", timeout=90)
    assert head.headers["stream-closed"] == "true"
    assert head.headers["x-rose-job-status"] == "cancelled"
    assert control["streamNextOffset"] == head.headers["stream-next-offset"] + "_end"


def test_a_reader_learns_why_a_job_failed(bench: Bench, origin: str) -> None:
    job, lease = bench.begin()
    failed = FailedEvent(index=0, code="boom", message="as the test wishes")
    bench.publish([calls.Append(lease, 0, end=failed)])

    text = read(origin, job.id, "text", offset="-1", live="long-poll")
    assert text.status_code == 204
    assert text.headers["x-rose-job-status"] == "failed"
    assert read(origin, job.id, "events").json() == [failed.as_json()]


def test_a_long_poll_waits_for_text_and_for_the_end(bench: Bench, origin: str) -> None:
    job, lease = bench.begin()
    # a token whose text is not certain yet
    bench.append(lease, TokenEvent(index=0, token_ids=(7,), text=""))

    silent = read(origin, job.id, "text", offset="-1", live="long-poll")
    assert silent.status_code == 204
    assert silent.headers["stream-next-offset"] == "0000000001"
    assert "stream-closed" not in silent.headers
    event = read(origin, job.id, "events", offset="-1", live="long-poll")
    assert [one["index"] for one in event.json()] == [0]

    last = TokenEvent(index=1, token_ids=(7,), text="é")
    item = to_append(lease, last)
    item.end = FinishedEvent(index=2, reason="eos", prompt_tokens=1)
    bench.publish([item])
    ended = read(origin, job.id, "text", offset="0000000001", live="long-poll")
    assert (ended.status_code, ended.text) == (200, "é")
    assert ended.headers["stream-closed"] == "true"


def test_lines_and_spaces_pass_an_event_stream(bench: Bench, origin: str) -> None:
    texts = [" two", "  spaces\n", "\n and\n\n lines", "", "event: control\n\n"]
    job, lease = bench.begin()
    for index, text in enumerate(texts):
        bench.append(lease, TokenEvent(index=index, token_ids=(7,), text=text))
    bench.finish(lease, len(texts))

    for start in range(len(texts) + 1):
        body = read(origin, job.id, "text", offset=f"{start:010d}", live="sse").text
        assert "".join(data for data, _ in sent_pairs(body)) == "".join(texts[start:])
    events = sent_pairs(read(origin, job.id, "events", offset="-1", live="sse").text)
    assert [one["text"] for data, _ in events for one in json.loads(data)[:-1]] == texts


def test_a_page_of_another_origin_may_read_where_it_stands(bench: Bench, origin: str) -> None:
    job, _ = bench.begin()

    url = f"{origin}/v1/jobs/{job.id}/stream/text"
    got = httpx.get(url, headers={"origin": "https://example.com"}, timeout=90)

    exposed = got.headers["access-control-expose-headers"].split(", ")
    said = [
        name for name in got.headers if name.startswith(("stream-", "x-rose-")) or name == "etag"
    ]
    assert len(said) >= 4
    assert set(said) <= set(exposed)


async def test_an_event_stream_ends_in_time_though_its_job_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    monkeypatch.setattr(job_streams, "_CONNECTION_S", 0.0)
    has_ended = False

    async def parts() -> AsyncGenerator[Part, None]:
        nonlocal has_ended
        try:
            yield Part("a b", Offset(1), is_all=True)
            await asyncio.Event().wait()
        finally:
            has_ended = True

    stream = logged("text")
    # when
    events = [event async for event in job_streams._events(stream, parts(), "")]
    # then: its reader goes on from there
    ((data, control),) = sent_pairs(b"".join(events).decode())
    assert (data, control["streamNextOffset"]) == ("a b", "0000000001")
    assert has_ended


class Logged:
    """A job whose log has two hundred tokens in one event, and its end."""

    id = "0-1"

    async def bursts(self, cursor: int) -> Any:
        tokens: list[Event] = [
            TokenEvent(
                index=0,
                token_ids=tuple(range(200)),
                text="x" * 200,
                text_lengths=(1,) * 200,
            ).after(cursor)
        ]
        yield [*tokens, FinishedEvent(index=200, reason="eos", prompt_tokens=1)]


async def on_end(ended: Any) -> None:
    """It may."""


def logged(view: View) -> JobStream:
    enter_request(RequestContext("test"))
    record = JobRecord("0-1", "", b"", "finished", 200, False, 0, 0, 0)
    jobs = [cast(AsyncJob, Logged())]
    group = JobGroup(jobs, record, None, on_end=on_end, metrics=Metrics(), pacer=LoopPacer())
    return JobStream(group, view)


@pytest.mark.parametrize("view", ["text", "events"])
async def test_what_is_long_comes_in_parts(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    # given
    monkeypatch.setattr(job_stream, "_PART", 60)
    stream = logged(view)
    # when
    parts, start = [], Offset(0)
    while not start.ended:
        first = stream.parts(start)
        parts.append(await anext(first))
        await first.aclose()
        start = parts[-1].next
    # then
    assert len(parts) > 2
    assert [(part.is_all, part.end) for part in parts[:-1]] == [(False, None)] * (len(parts) - 1)
    assert (parts[-1].is_all, parts[-1].end) == (True, "finished")
    written = [stream.written(part.next) for part in parts]
    assert written == sorted(written)
    if view == "text":
        assert "".join(part.data for part in parts) == "x" * 200
    else:
        messages = [one for part in parts for one in json.loads(stream.body(part))]
        assert [one["index"] for one in messages] == list(range(201))
