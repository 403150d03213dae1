"""Exactly once and in order, for the sync and the async client, on each broker.

The worker is played by hand here, so that every test decides what happens when.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing

import pytest

from rose.errors import (
    AnswerChanged,
    BrokerUnavailable,
    DeadlineExceeded,
    InvalidCursor,
    InvalidParameter,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTooLarge,
    PromptTooLong,
    ResultTimeout,
)
from rose.protocol import encode_event
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import AsyncClient, Client, Event, Job, TokenEvent
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, create_groups, end_failed, log_reads, token, wait_until
from tests.support.listeners import Listeners
from tests.support.rewriting import log_of, write_log

#: Collects the events of a job with one of the two clients.
Collect = Callable[[Job, int], list[Event]]


@pytest.fixture(params=["sync", "async"])
def collect(request: pytest.FixtureRequest, bench: Bench) -> Collect:
    def with_sync(job: Job, cursor: int) -> list[Event]:
        return list(job.stream(cursor, timeout_s=90))

    async def stream_async(job: Job, cursor: int) -> list[Event]:
        async with AsyncClient(bench.client.settings) as client:
            return [event async for event in client.job(job.id).stream(cursor, timeout_s=90)]

    def with_async(job: Job, cursor: int) -> list[Event]:
        return asyncio.run(stream_async(job, cursor))

    return with_sync if request.param == "sync" else with_async


def subscribers(bench: Bench, job: Job) -> int:
    channel = bench.partition.channel(job.id)
    return int(bench.redis.pubsub_numsub(channel)[0][1])


def test_a_late_subscriber_gets_everything_from_its_cursor_on(
    bench: Bench, collect: Collect
) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, token(0), token(1))
    bench.finish(lease, 2)
    # when
    events = collect(job, 0)
    # then
    assert [event.cursor for event in events] == [1, 2, 2]
    assert events[:2] == [token(0), token(1)]
    assert collect(job, 1) == events[1:]
    assert collect(job, 2) == events[2:]


def test_messages_lost_on_the_channel_are_filled_from_the_log(
    bench: Bench, collect: Collect
) -> None:
    # given: one token before the subscriber comes
    job, lease = bench.begin()
    bench.append(lease, token(0))
    with ThreadPoolExecutor(1) as background:
        received = background.submit(collect, job, 0)
        wait_until(lambda: subscribers(bench, job))
        # when: token 1 reaches the log alone, 2 both log and channel, and 2 comes twice
        event = {"event": encode_event(token(1))}
        bench.redis.xadd(bench.partition.tokens(job.id), event, id="2-0")
        bench.redis.hset(bench.partition.state(job.id), "tokens", 2)
        bench.append(lease, token(2))
        bench.redis.publish(bench.partition.channel(job.id), encode_event(token(2)))
        bench.append(lease, token(3))
        bench.finish(lease, 4)
        # then
        assert [event.index for event in received.result(90)] == [0, 1, 2, 3, 4]


@needs_redis_server
def test_a_late_subscriber_reads_the_log_once(own_redis: EmbeddedBroker, queue: str) -> None:
    # given: a job that goes on, and clients that do not look into the log in a silence
    with closing(Bench(own_redis, queue)) as bench:
        settings = bench.client.settings.model_copy(update={"poll_interval_s": 3600})
        job, lease = bench.begin()
        bench.append(lease, token(0), token(1))
        before = log_reads(bench.redis)

        async def read_three() -> list[Event]:
            async with (
                AsyncClient(settings) as client,
                aclosing(client.job(job.id).stream()) as events,
            ):
                first = [await anext(events), await anext(events)]
                bench.append(lease, token(2))
                return [*first, await anext(events)]

        # when / then
        assert asyncio.run(read_three()) == [token(0), token(1), token(2)]
        assert log_reads(bench.redis) == before + 1
        with Client(settings) as client, closing(client.job(job.id).stream()) as events:
            assert [next(events) for _ in range(3)] == [token(0), token(1), token(2)]
            bench.append(lease, token(3))
            assert next(events) == token(3)
        assert log_reads(bench.redis) == before + 2


@pytest.mark.parametrize("count", [99, 100, 101, 250, 1100])
async def test_a_log_of_any_length_is_read_whole_by_a_client_that_has_listened_before(
    bench: Bench, count: int
) -> None:
    """What goes with the subscription brings the first hundred events."""
    # given
    job, lease = bench.begin()
    bench.append(lease, *(token(index) for index in range(count)))
    bench.finish(lease, count)
    async with AsyncClient(bench.client.settings) as client:
        for _ in range(2):
            # when
            events = [event async for event in client.job(job.id).stream(timeout_s=90)]
            # then
            assert [event.index for event in events] == list(range(count + 1))
        later = [event async for event in client.job(job.id).stream(count - 50, timeout_s=90)]
        assert [event.index for event in later] == list(range(count - 50, count + 1))


def test_a_consumer_that_stops_early_leaves_no_subscription(bench: Bench) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, token(0), token(1))

    async def read_one() -> None:
        async with AsyncClient(bench.client.settings) as client:
            async with aclosing(client.job(job.id).stream()) as events:
                async for _ in events:
                    break
            await asyncio.to_thread(wait_until, lambda: subscribers(bench, job) == 0)

    # when / then
    with closing(job.stream()) as events:
        next(events)
    wait_until(lambda: subscribers(bench, job) == 0)
    asyncio.run(read_one())


def test_what_cannot_be_streamed_says_why(bench: Bench, collect: Collect) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, token(0))
    # then
    with pytest.raises(JobNotFound, match="0-nobody"):
        collect(bench.client.job("0-nobody"), 0)
    bench.finish(lease, 1)
    with pytest.raises(InvalidCursor, match="the answer ends after 1: read the job again from"):
        collect(job, 7)
    bench.redis.delete(bench.partition.tokens(job.id))
    with pytest.raises(JobNotFound, match="expired"):
        collect(job, 0)


def forget(bench: Bench, job: Job, tokens: int) -> None:
    """As a failover does: what came after so many tokens is not known any more."""
    log = log_of(bench.redis, bench.partition, job.id)
    write_log(bench.redis, bench.partition, job.id, log[:tokens])
    bench.redis.hset(bench.partition.state(job.id), "tokens", tokens)


@needs_redis_server
def test_a_cursor_of_before_a_failover_waits_until_its_tokens_come_again(
    bench: Bench, collect: Collect
) -> None:
    # given
    job, lease = bench.begin()
    bench.append(lease, *map(token, range(5)))
    forget(bench, job, 2)
    with ThreadPoolExecutor(1) as background:
        # when
        received = background.submit(collect, job, 5)
        wait_until(lambda: subscribers(bench, job))
        bench.append(lease, *map(token, range(2, 7)))
        bench.finish(lease, 7)
        # then
        assert [event.index for event in received.result(90)] == [5, 6, 7]


@needs_redis_server
@pytest.mark.parametrize("others", [3, 5])
def test_a_stream_whose_tokens_come_again_as_others_ends_and_a_result_begins_anew(
    bench: Bench, others: int
) -> None:
    # given: streams that have five tokens
    job, lease = bench.begin()
    bench.append(lease, *map(token, range(5)))
    listeners = Listeners(bench.client.settings, job.id)
    wait_until(lambda: listeners.have(5))
    with ThreadPoolExecutor(1) as background:
        result = background.submit(job.result, 90)
        wait_until(lambda: subscribers(bench, job) == 3)
        forget(bench, job, 2)
        # when: half precision computes others, one fewer and more than were forgotten
        again = [TokenEvent(index=2 + n, token_ids=(7,), text="7 ") for n in range(others)]
        bench.append(lease, *again)
        bench.finish(lease, 2 + others)
        # then
        listeners.join()
        assert [type(error) for error in listeners.errors] == [AnswerChanged] * 2
        assert all("from cursor 0" in str(error) for error in listeners.errors)
        assert [len(seen) for seen in listeners.seen] == [5, 5]
        assert result.result(90).text == "t0 t1 " + "7 " * others


def test_a_result_is_the_text_or_the_error_it_ended_with(bench: Bench) -> None:
    # given
    done, cancelled, *failed = bench.client.submit_many(["x"] * 6)
    lease = bench.start("w")
    bench.append(lease, token(0), token(1))
    bench.finish(lease, 2)
    cancelled.cancel()
    codes = ["deadline_exceeded", "prompt_too_long", "invalid_parameter", "crash_loop"]
    bench.fetch("w")  # the cancelled one
    for job, code in zip(failed, codes, strict=True):
        end_failed(bench, job, code)
    # then
    result = done.result()
    assert (result.text, result.token_ids, result.finish_reason) == ("t0 t1 ", (100, 101), "eos")
    with pytest.raises(JobCancelled):
        cancelled.result()
    errors = (DeadlineExceeded, PromptTooLong, InvalidParameter, JobFailed)
    for job, code, error in zip(failed, codes, errors, strict=True):
        with pytest.raises(error, match=job.id) as caught:
            job.result()
        assert caught.value.code == code


def test_a_timeout_is_the_callers_and_the_job_goes_on(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    # when / then
    with pytest.raises(ResultTimeout):
        job.result(timeout_s=0.05)
    assert job.status().status == "queued"


def test_status_tells_how_a_job_stands(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    waiting = job.status()
    lease = bench.start("w7")
    bench.append(lease, token(0))
    running = job.status()
    bench.finish(lease, 1)
    ended = job.status()
    # then
    assert (waiting.status, waiting.worker, waiting.tokens) == ("queued", None, 0)
    assert (running.status, running.worker, running.tokens) == ("running", "w7", 1)
    assert (ended.status, ended.attempts) == ("finished", 1)
    assert waiting.enqueued_ms
    assert ended.ended_ms


def test_submit_many_sends_nothing_when_one_is_wrong(bench: Bench) -> None:
    with pytest.raises(InvalidParameter):
        bench.client.submit_many(["fine", ""])
    with pytest.raises(JobTooLarge):
        bench.client.submit_many(["fine", "x" * 2**20])
    assert bench.lengths() == [0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": "urgent"},
        {"deadline_s": 0},
        {"deadline_s": -1},
        {"idempotency_key": ""},
        {"job_id": "a b"},
        {"job_id": "1-of-a-partition-there-is-not"},
        {"tempreature": 0.1},
        {"metadata": {"k": object()}},
    ],
)
def test_submit_names_a_wrong_option(bench: Bench, options: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(options)).removeprefix("job_")):
        bench.client.submit("x", **options)  # type: ignore[arg-type]
    assert bench.lengths() == [0, 0, 0]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis+sentinel://127.0.0.1:1/rose"])
def test_without_redis_there_is_one_clear_error(url: str) -> None:
    with (
        Client(redis_url=url, redis_retries=1) as client,
        pytest.raises(BrokerUnavailable, match="Redis cannot be used"),
    ):
        client.submit("x")


def test_queue_status_counts_every_kind(bench: Bench) -> None:
    # given: first without streams and groups, as a queue that no worker has served
    bench.redis.delete(*bench.partition.all_jobs)
    assert bench.client.queue_status().waiting == {"high": 0, "normal": 0, "low": 0}
    bench.client.submit_many(["a", "b", "c"])
    bench.client.submit("d", priority="low")
    unserved = bench.client.queue_status()
    assert (unserved.waiting["normal"], unserved.running, unserved.workers) == (3, 0, {})
    assert unserved.oldest_running_ms is None
    create_groups(bench.redis, bench.partition)
    bench.start("w")
    # when
    status = bench.client.queue_status()
    # then
    assert status.waiting == {"high": 0, "normal": 2, "low": 1}
    assert (status.running, status.workers, status.model) == (1, {"w": 1}, None)
    assert status.oldest_running_ms
