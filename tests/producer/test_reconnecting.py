"""Streams that wait for long: connections come and go, and nobody asks for nothing."""

import time
from collections.abc import Callable
from unittest import mock

import pytest

from rose.protocol import encode_event
from rose.transport import failures
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, log_reads, token, wait_until
from tests.support.listeners import Listeners
from tests.support.proxy import Proxy

pytestmark = needs_redis_server


@pytest.fixture
def any_broker(own_redis: EmbeddedBroker) -> EmbeddedBroker:
    return own_redis


def test_blips_far_apart_end_no_stream_though_its_job_says_nothing(
    own_redis: EmbeddedBroker, bench: Bench, queue: str
) -> None:
    # given: a job that waits, and a subscriber with each client
    outage_s = 60.0
    with Proxy(own_redis.port) as proxy:
        settings = ProducerSettings(
            redis_url=proxy.url,  # type: ignore[arg-type]
            queue=queue,
            reconnect_timeout_s=outage_s,
        )
        job, lease = bench.begin()
        channel = bench.partition.channel(job.id)
        listeners = Listeners(settings, job.id)

        def listening(reads: int) -> Callable[[], bool]:
            """Both are subscribed, and both have read the log after that."""
            return lambda: bool(
                listeners.errors
                or (
                    bench.redis.pubsub_numsub(channel)[0][1] == 2
                    and log_reads(bench.redis) >= reads
                )
            )

        wait_until(listening(2))
        clock = mock.Mock(side_effect=time.monotonic)
        with mock.patch.object(failures, "time", mock.Mock(monotonic=clock)):
            for passed_s in (0.0, 1.5 * outage_s):
                # when: further apart than the longest outage that a stream rides out
                clock.side_effect = lambda passed_s=passed_s: time.monotonic() + passed_s
                before = log_reads(bench.redis)
                proxy.cut_now()
                wait_until(listening(before + 2))
                assert clock.called
        # then
        bench.append(lease, token(0))
        bench.finish(lease, 1)
        assert [event.index for event in listeners.events()] == [0, 1]


def test_a_silent_stream_looks_into_the_log_less_and_less_and_misses_nothing(
    own_redis: EmbeddedBroker, bench: Bench, queue: str
) -> None:
    # given: a subscriber with each client, which look after 0.1 s, 0.2 s, then every 0.4 s
    settings = ProducerSettings(
        redis_url=own_redis.url,  # type: ignore[arg-type]
        queue=queue,
        poll_interval_s=0.1,
        max_poll_interval_s=0.4,
    )
    job, lease = bench.begin()
    # when: one look of each at the start of its stream, then 6 of each
    began = time.monotonic()
    listeners = Listeners(settings, job.id)
    wait_until(lambda: listeners.errors or log_reads(bench.redis) >= 2 + 2 * 6)
    # then: jitter takes at most a fifth, and one of the two may be ahead
    assert time.monotonic() - began >= 0.8 * (0.1 + 0.2 + 3 * 0.4)
    # and when: a token reaches the log alone
    bench.redis.xadd(bench.partition.tokens(job.id), {"event": encode_event(token(0))}, id="1-0")
    bench.redis.hset(bench.partition.state(job.id), "tokens", 1)
    # then
    wait_until(lambda: listeners.have(1))
    bench.finish(lease, 1)
    assert [event.index for event in listeners.events()] == [0, 1]
