"""What a key may use: counted in Redis, for all gateways together."""

from collections.abc import AsyncIterator

import pytest

from rose import transport
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.authentication import (
    Caller,
    RequestContext,
    current_request,
    enter_request,
)
from rose_gateway.access.limits import Limits, QueuedJob
from rose_gateway.errors import ApiError
from rose_gateway.http.error_answers import error_response
from rose_gateway.metrics import Metrics
from rose_gateway.settings import KeyLimits
from rose_producer import ProducerSettings


class Statuses(dict[str, str | None]):
    """How jobs stand, by id."""

    async def of(self, job: QueuedJob) -> str | None:
        return self.get(job.job_id, "running")


@pytest.fixture
def statuses() -> Statuses:
    return Statuses()


@pytest.fixture
async def limits(any_broker: EmbeddedBroker, statuses: Statuses) -> AsyncIterator[Limits]:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url=any_broker.url))
    enter_request(RequestContext("req_test"))
    yield Limits(client, Metrics(), statuses.of)
    await client.aclose()


def jobs(*ids: str) -> list[QueuedJob]:
    return [QueuedJob("q", job_id) for job_id in ids]


async def test_requests_a_minute_are_refused_beyond_the_limit(limits: Limits, queue: str) -> None:
    # given
    caller = Caller(f"{queue}-a", KeyLimits(requests_per_minute=2))
    await limits.take(caller, 0, jobs("1"))
    await limits.take(caller, 0, jobs("2"))
    # when
    with pytest.raises(ApiError) as refused:
        await limits.take(caller, 0, jobs("3"))
    # then
    error = refused.value
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "requests")
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 30
    headers = current_request().headers
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    # and: another key has limits of its own
    await limits.take(Caller(f"{queue}-b", caller.limits), 0, jobs("4"))


async def test_tokens_a_minute_are_refused_beyond_the_limit(limits: Limits, queue: str) -> None:
    caller = Caller(queue, KeyLimits(tokens_per_minute=6000))
    await limits.take(caller, 6000, jobs("1"))
    with pytest.raises(ApiError, match="try again later") as refused:
        await limits.take(caller, 6000, jobs("2"))
    # 100 tokens come back in a second, and some seconds may have passed
    assert refused.value.retry_after_s == pytest.approx(45, abs=15)
    with pytest.raises(ApiError, match="ask for less") as never:
        await limits.take(caller, 6001, jobs("3"))
    assert error_response(never.value).headers["x-should-retry"] == "false"


async def test_a_refused_request_takes_nothing(limits: Limits, queue: str) -> None:
    # given: room for a request, none for its jobs
    caller = Caller(queue, KeyLimits(requests_per_minute=2, max_jobs=1))
    with pytest.raises(ApiError):
        await limits.take(caller, 0, jobs("1", "2"))
    # then
    await limits.take(caller, 0, jobs("3"))
    assert current_request().headers["x-ratelimit-remaining-requests"] == "1"


async def test_jobs_at_once_count_until_they_end(limits: Limits, queue: str) -> None:
    caller = Caller(queue, KeyLimits(max_jobs=2))
    await limits.take(caller, 0, jobs("1", "2"))
    with pytest.raises(ApiError) as refused:
        await limits.take(caller, 0, jobs("3"))
    assert (refused.value.status, refused.value.code) == (429, "max_jobs")
    # when
    await limits.give_back(caller.key_id, jobs("1"))
    # then
    await limits.take(caller, 0, jobs("3"))


async def test_jobs_whose_end_nobody_saw_are_looked_up(
    limits: Limits, statuses: Statuses, queue: str
) -> None:
    # given: the gateway that would have seen it is dead
    caller = Caller(queue, KeyLimits(max_jobs=2))
    await limits.take(caller, 0, jobs("ended", "running"))
    statuses["ended"] = "finished"
    # then
    await limits.take(caller, 0, jobs("new"))
    with pytest.raises(ApiError):
        await limits.take(caller, 0, jobs("one more"))


async def test_a_job_that_is_being_enqueued_counts_though_the_queue_does_not_know_it(
    limits: Limits, statuses: Statuses, queue: str
) -> None:
    caller = Caller(queue, KeyLimits(max_jobs=1))
    statuses["under way"] = None
    await limits.take(caller, 0, jobs("under way"))
    with pytest.raises(ApiError):
        await limits.take(caller, 0, jobs("2"))


async def test_reads_have_a_bucket_of_their_own(limits: Limits, queue: str) -> None:
    # given
    caller = Caller(queue, KeyLimits(requests_per_minute=1, reads_per_minute=2, max_jobs=1))
    await limits.take(caller, 0, jobs("1"))
    # when
    await limits.take_read(caller)
    await limits.take_read(caller)
    # then
    with pytest.raises(ApiError, match="2 reads a minute") as refused:
        await limits.take_read(caller)
    assert (refused.value.status, refused.value.type) == (429, "reads")
    assert 0 < (refused.value.retry_after_s or 0) <= 30
    # and: callers without a key have one together
    await limits.take_read(Caller(limits=caller.limits))


async def test_a_request_without_jobs_counts_as_one(limits: Limits, queue: str) -> None:
    caller = Caller(queue, KeyLimits(requests_per_minute=2, max_jobs=1))
    await limits.take(caller, 0, jobs("1"))
    await limits.take(caller)
    with pytest.raises(ApiError, match="2 requests a minute"):
        await limits.take(caller)


async def test_without_limits_nothing_is_asked_of_redis() -> None:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url="redis://127.0.0.1:1/0"))
    limits = Limits(client, Metrics(), Statuses().of)
    await limits.take(Caller("k"), 10**9, jobs("1"))
    await limits.take_read(Caller("k"))
