"""What a worker says of a Redis that may lose jobs."""

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import serving

REPLAYS = "a restart of Redis replays what scripts wrote"


@needs_redis_server
@pytest.mark.parametrize(
    ("options", "says", "replays"),
    [
        ({}, [], True),
        ({"appendonly": "no"}, ["WARNING rose.worker: appendonly is no"], False),
        (
            {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
            ["ERROR rose.worker: maxmemory-policy is allkeys-lru"],
            True,
        ),
    ],
    ids=["durable", "no log", "evicting"],
)
def test_a_redis_that_may_lose_jobs_is_told_at_the_start(
    options: dict[str, str], says: list[str], replays: bool, queue: str
) -> None:
    with (
        # given
        EmbeddedBroker(fake=False, options=options) as broker,
        # when
        serving("looks", broker.url, queue=queue) as worker,
    ):
        # then
        expected = [*says, *([REPLAYS] if replays else [])]
        wait_until(lambda: all(text in worker.log for text in expected))
        assert (REPLAYS in worker.log) == replays
        assert ("maxmemory-policy" in worker.log) == ("maxmemory-policy" in options)
