"""A primary that a real Sentinel watches, and a replica to which it fails over."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
from redis.exceptions import RedisError

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker, find_redis_server, free_port
from tests.conftest import needs_redis_server
from tests.support.bench import token, wait_until
from tests.support.cluster import BenchAt
from tests.support.listeners import Listeners

pytestmark = needs_redis_server


@contextmanager
def watching(primary: EmbeddedBroker) -> Iterator[int]:
    """A Sentinel; gives its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "sentinel.conf")
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor rose 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds rose 2000\n"
            "sentinel failover-timeout rose 2000\n"
        )
        command = [find_redis_server() or "redis-server", str(config), "--sentinel"]
        process = primary.begin(command, Path(folder, "log"))
        try:
            wait_until(lambda: knows_a_replica(port))
            yield port
        finally:
            process.kill()
            process.wait()


def knows_a_replica(sentinel: int) -> bool:
    with redis.Redis(port=sentinel, protocol=2) as client:
        try:
            return len(client.sentinel_slaves("rose")) == 1
        except RedisError:  # not yet up
            return False


def test_a_failover_is_a_pause(queue: str) -> None:
    with ExitStack() as stack:
        # given: two subscribers by way of the Sentinel
        primary = stack.enter_context(EmbeddedBroker(fake=False))
        options = {"replicaof": f"127.0.0.1 {primary.port}"}
        stack.enter_context(EmbeddedBroker(fake=False, options=options))
        port = stack.enter_context(watching(primary))
        bench = BenchAt(f"redis+sentinel://127.0.0.1:{port}/rose/0", Partition(queue))
        stack.callback(bench.close)
        job, lease = bench.begin()
        bench.append(lease, token(0))
        listeners = Listeners(bench.client.settings, job.id)
        wait_until(lambda: listeners.have(1))
        # when: all that was written is on the replica, and the primary dies
        with redis.Redis(port=primary.port) as client:
            client.set("marker", 1)
            assert client.wait(1, 10_000) == 1
        primary.stop()
        # then
        wait_until(lambda: appended(bench, lease))
        assert bench.finish(lease, 2) == "OK"
        assert [event.index for event in listeners.events()] == [0, 1, 2]
        assert bench.client.submit("y").status().status == "queued"


def appended(bench: BenchAt, lease: object) -> bool:
    try:
        return bench.append(lease, token(1)) in (["OK"], ["DUP"])  # type: ignore[arg-type]
    except RedisError:  # there is no primary yet
        return False
