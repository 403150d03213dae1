"""A Redis that is up and refuses: calls are repeated, and a worker does not grow meanwhile."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from rose.errors import BrokerUnavailable
from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, Request
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import has_no_jobs, serving
from tests.support.listeners import Listeners, assert_echo
from tests.support.mid_sentence import IMPATIENT, PROMPT, Stream, settings
from tests.support.proxy import Proxy
from tests.support.troubles import busy, loading, read_only, unable_to_save, without_replicas

pytestmark = needs_redis_server

ENDLESS = {"max_new_tokens": 100_000}


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("LOADING", "loading"),
        ("READONLY", "read only replica"),
        ("MASTERDOWN", "MASTER is down"),
        ("MISCONF", "MISCONF"),
        ("NOREPLICAS", "NOREPLICAS"),
        ("BUSY", "BUSY"),
    ],
)
def test_a_redis_that_is_up_and_refuses(
    server: EmbeddedBroker,
    proxy: Proxy,
    admin: redis.Redis,
    client: Client,
    endless: Callable[..., Stream],
    how: str,
    says: str,
) -> None:
    # given: subscribers behind a proxy of their own
    with (
        Proxy(server.port) as other,
        Client(settings(other.url)) as producer,
    ):
        running = endless(other.url)
        # when
        trouble = {
            "LOADING": loading(proxy, other),
            "READONLY": read_only(admin),
            "MASTERDOWN": read_only(admin, serves_reads=False),
            "MISCONF": unable_to_save(admin),
            "NOREPLICAS": without_replicas(admin),
            "BUSY": busy(admin),
        }
        with trouble[how]:
            with pytest.raises(BrokerUnavailable, match=says):
                producer.submit("x")
            # longer than the pause that a look for silent workers takes for a trouble of Redis
            time.sleep(2.5)
        # then: the worker has kept its job
        running.assert_goes_on()
        assert running.job.status().epoch == 1
        assert client.submit("ab", max_new_tokens=2).result(90).token_ids == (97, 98)


def test_a_worker_that_may_not_publish_is_slow_and_loses_nothing(
    server: EmbeddedBroker, admin: redis.Redis, queue: str
) -> None:
    # given: what its engine says in a pause comes together, so the last tokens with the end
    admin.execute_command("ACL", "SETUSER", "mute", "on", ">mute", "~*", "&*", "+@all", "-publish")
    url = server.url.replace("redis://", "redis://mute:mute@")
    given = settings(server.url).model_copy(update={"queue": queue})
    with (
        Client(given) as client,
        serving("mute", url, queue=queue, **IMPATIENT) as worker,
    ):
        # when
        jobs = [client.submit(PROMPT, max_new_tokens=tokens) for tokens in (1, 20)]
        listening = [Listeners(given, job.id) for job in jobs]
        # then
        assert_echo(listening[0].events(), PROMPT, 1)
        assert_echo(listening[1].events(), PROMPT, 20)
        assert [job.status().epoch for job in jobs] == [1, 1]
        assert "publishing waits for Redis" in worker.log
        wait_until(lambda: has_no_jobs(admin, Partition(queue)))


def test_a_worker_that_cannot_publish_does_not_grow(server: EmbeddedBroker, queue: str) -> None:
    # given: a full batch at full speed
    own = Partition(queue)
    full_speed = {**IMPATIENT, "queue": queue, "max_buffered_steps": 50, "lease_s": 30}
    with (
        Proxy(server.port) as bad,
        Client(redis_url=server.url, queue=queue) as client,
        serving("mute", bad.url, **full_speed) as worker,
    ):
        short = client.submit(PROMPT, max_new_tokens=1000)
        endless = client.submit_many(Request(PROMPT, sampling=ENDLESS) for _ in range(31))
        wait_until(lambda: short.status().tokens > 20)
        # when
        with loading(bad):
            wait_until(lambda: grown_mib(worker, 0.5) < 0.1)
            grown = grown_mib(worker, 1.5)
        # then
        assert grown < 1
        assert_echo(list(short.stream(timeout_s=90)), PROMPT, 1000)
        assert all(job.cancel() for job in endless)
        with redis.Redis(port=server.port) as admin:
            wait_until(lambda: has_no_jobs(admin, own))


def grown_mib(worker: WorkerProcess, over_s: float) -> float:
    """Growth of the process's resident memory."""

    def resident_kib() -> int:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    before = resident_kib()
    time.sleep(over_s)
    return (resident_kib() - before) / 1024
