"""A primary that a real Sentinel watches, and a replica to which it fails over."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from redis.exceptions import RedisError

from rose.protocol import Partition
from tests.conftest import needs_redis_server
from tests.support.bench import token, wait_until
from tests.support.cluster import BenchAt
from tests.support.listeners import Listeners
from tests.support.sentinel import LocalSentinel

pytestmark = needs_redis_server


def test_a_failover_is_a_pause(queue: str) -> None:
    # given: two subscribers by way of the Sentinel
    with (
        LocalSentinel({"repl-diskless-sync-delay": "0"}) as servers,
        closing(BenchAt(servers.url, Partition(queue))) as bench,
    ):
        job, lease = bench.begin()
        bench.append(lease, token(0))
        listeners = Listeners(bench.client.settings, job.id)
        wait_until(lambda: listeners.have(1))
        # when
        servers.fail_over()
        # then
        wait_until(lambda: appended(bench, lease))
        assert bench.finish(lease, 2) == "OK"
        assert [event.index for event in listeners.events()] == [0, 1, 2]
        assert bench.client.submit("y").status().status == "queued"


def appended(bench: BenchAt, lease: Any) -> bool:
    try:
        return bench.append(lease, token(1)) in (["OK"], ["DUP"])
    except RedisError:  # its connection leads to what is a replica now
        return False
