"""Calls that Redis has carried out and whose replies never came."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import redis

from rose.protocol import JobSpec, Priority, encode_job
from rose.protocol.calls import fetch, take
from rose.protocol.keys import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import echoed, serving
from tests.support.proxy import Proxy

pytestmark = needs_redis_server

SHA_OF_FETCH = fetch(Partition("any"), "w", 1, ageing_ms=1).script.sha1.encode()
SHA_OF_TAKE = take(Partition("any"), [], "w", ttl_s=1).script.sha1.encode()


@dataclass
class Served:
    client: Client
    worker: WorkerProcess
    proxy: Proxy

    def lose_replies_to_take(self, count: int) -> None:
        self.proxy.swallow_times, self.proxy.swallow = count, SHA_OF_TAKE


@pytest.fixture
def serve(broker: EmbeddedBroker, queue: str, client: Client) -> Iterator[Callable[..., Served]]:
    """A worker behind a proxy, whose leases are too long to matter."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(broker.port))

        def start(**settings: float) -> Served:
            worker = serving("w", proxy.url, queue=queue, lease_s=60, **settings)
            return Served(client, stack.enter_context(worker), proxy)

        yield start


@pytest.mark.parametrize("retries", [0, 5])
@pytest.mark.parametrize("jobs", [1, 4])
def test_three_lost_replies_of_take_cost_no_attempt(
    serve: Callable[..., Served], raw: redis.Redis, partition: Partition, jobs: int, retries: int
) -> None:
    """One job is heard of and taken in one call; several are fetched first, which leaves those to
    take that came without `submit`."""
    # given: `max_attempts` is three
    served = serve(redis_retries=retries)
    served.lose_replies_to_take(3)
    specs = [JobSpec(id=f"job-{number}", prompt="ab") for number in range(jobs)]
    # when
    pipeline = raw.pipeline()
    for spec in specs:
        pipeline.xadd(partition.jobs(Priority.NORMAL), {"job": encode_job(spec)})
    pipeline.execute()
    # then
    wait_until(lambda: all(raw.exists(partition.state(spec.id)) for spec in specs), 90)
    for job in map(served.client.job, (spec.id for spec in specs)):
        assert job.result(90).token_ids == echoed(b"ab", 256)
        status = job.status()
        assert (status.status, status.epoch, status.attempts) == ("finished", 1, 1)
    assert served.proxy.cuts == 3
    assert "alone" not in served.worker.log
    assert "lapsed" not in served.worker.log


@pytest.mark.parametrize("jobs", [4, 40])
def test_what_a_lost_reply_of_fetch_has_read_does_not_wait_for_a_lease(
    serve: Callable[..., Served], jobs: int
) -> None:
    # given: a lease of a minute
    served = serve()
    served.proxy.swallow = SHA_OF_FETCH
    wait_until(lambda: served.proxy.cuts)
    served.proxy.swallow_times, served.proxy.swallow = 2, SHA_OF_FETCH
    # when
    submitted = served.client.submit_many(["ab"] * jobs)
    # then
    for job in submitted:
        assert job.result(50).token_ids == echoed(b"ab", 256)
        assert (job.status().epoch, job.status().attempts) == (1, 1)
    assert served.proxy.cuts == 3
