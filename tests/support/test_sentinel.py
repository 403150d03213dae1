"""The Sentinel of the tests: what a failover loses."""

import threading

import redis

from tests.conftest import needs_redis_server
from tests.support.sentinel import LocalSentinel

_SILENT_S = 2.0


@needs_redis_server
def test_what_was_written_before_a_failover_outlives_a_silence_between_the_two() -> None:
    # given
    with LocalSentinel({"repl-diskless-sync-delay": "0"}) as servers:
        way = servers.proxies[servers.primary]
        way.silence()
        with redis.Redis(port=servers.nodes[servers.primary].port) as primary:
            primary.set("written", "before")
        speaks = threading.Timer(_SILENT_S, way.speak, kwargs={"lost": True})
        speaks.start()
        # when
        servers.fail_over()
        speaks.join()
        # then
        with redis.Redis(port=servers.nodes[servers.primary].port) as heir:
            assert heir.get("written") == b"before"
