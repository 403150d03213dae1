"""Tenants' turns: the scripts beside a plain Python account, whatever happens in any order."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from rose.protocol import Partition
from rose.protocol.tenants import TenantLimits
from rose.transport import RedisClient
from rose_cli.local.broker import EmbeddedBroker
from rose_producer.settings import ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.tenant_queue import TenantQueue

_NAMES = ["ann", "bob", "cy"]
_SCRIPTS = [
    *("submit", "fetch", "take", "append", "cancel", "release", "reclaim", "set_tenant"),
    *("announce", "create_groups"),
]
_SHARES = (b"parked:", b"ready", b"heads", b"deadlines")
#: Parts of the names of keys that are there only while jobs have not ended.
_OF_UNENDED_JOBS = [b"}:running", *(b"}:shares:" + name for name in _SHARES)]
_numbers = itertools.count()

_which = st.integers(0, 50)
_limits = st.builds(
    TenantLimits,
    weight=st.sampled_from([1.0, 2.0, 7.0]),
    max_running_jobs=st.none() | st.integers(1, 3),
)
_steps = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(_NAMES), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(st.just("submit"), st.sampled_from(_NAMES), st.just(1), st.integers(1, 40)),
    st.tuples(st.just("fetch"), st.sampled_from(["w1", "w2"]), st.integers(1, 4)),
    st.tuples(st.just("lose_reply"), st.sampled_from(["w1", "w2"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["say", "finish", "fail", "cancel", "hand_back"]), _which),
    st.tuples(st.just("lapse")),
    st.tuples(st.just("set_limits"), st.sampled_from(_NAMES), _limits),
    st.tuples(st.just("submit"), st.just(""), st.just(1), st.integers(1, 40)),
)

#: One worker found nothing while the other had all: it waits, and gets its part of what comes.
_ONE_WAITS = [
    *[("submit", "ann", 1, 1)] * 4,
    *[("fetch", "w1", 1), ("fetch", "w1", 1), ("fetch", "w2", 3), ("fetch", "w1", 1)],
    *[("submit", "ann", 1, 1)] * 2,
    ("fetch", "w2", 2),
]


@pytest.fixture(scope="module")
def scripts(_brokers: Callable[[bool], EmbeddedBroker]) -> Iterator[RedisClient]:
    url = SecretStr(_brokers(False).url)
    client = RedisClient(ProducerSettings(redis_url=url))
    client.load_scripts(_SCRIPTS)
    yield client
    client.close()


@needs_redis_server
@settings(max_examples=150)
@example(steps=_ONE_WAITS, nobodys=False, passing=())
@given(
    steps=st.lists(_steps, min_size=5, max_size=60),
    nobodys=st.booleans(),
    passing=st.sampled_from([(), (), (0,), (2,), (0, 2)]),
)
def test_each_job_gets_its_turn(
    scripts: RedisClient, steps: list[tuple[Any, ...]], nobodys: bool, passing: tuple[int, ...]
) -> None:
    # given
    queue = TenantQueue(scripts, Partition(f"turns-{next(_numbers)}"), passing)
    queue.begin()
    # when: each step holds what it did against the account
    for name, *arguments in steps:
        if "" in arguments and not nobodys:
            continue
        play(queue, name, *arguments)
    # then: nothing is forgotten
    for name in _NAMES:
        queue.set_limits(name, TenantLimits())
    while queue.unended:
        assert queue.fetch("w1", 3) or queue.running
        for job in queue.running:
            queue.finish(job)
    assert scripts.execute("HGET", queue.partition.load, "tokens") in (None, b"0")
    left = scripts.execute("KEYS", f"rose:{{{queue.partition.queue}:0}}:*")
    assert not [key for key in left if any(name in key for name in _OF_UNENDED_JOBS)]


def play(queue: TenantQueue, name: str, *arguments: Any) -> None:
    """A step that has nothing to work on does nothing."""
    if name in ("say", "finish", "fail", "hand_back", "cancel"):
        # The entry of one that is cancelled while it stands in a stream stays there until a worker
        # sees it: not played here.
        parked = [job for tenant in _NAMES for job in queue.waiting(tenant)]
        candidates = queue.running + (parked if name == "cancel" else [])
        if candidates:
            getattr(queue, name)(candidates[arguments[0] % len(candidates)])
    else:
        getattr(queue, name)(*arguments)
