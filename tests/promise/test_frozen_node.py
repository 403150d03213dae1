"""A node of a cluster that says nothing and refuses nothing: the partitions of the others go on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, Client, Job, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import until, wait_until
from tests.support.cluster import LocalCluster, channels
from tests.support.echo import running, serving
from tests.support.listeners import Listeners, assert_echo

pytestmark = needs_redis_server

PARTITIONS = 6
PROMPT = "abc"
LEASE_S = 4.0
FROZEN_S = 2 * LEASE_S
GRACE_S = 1.0
DRAIN_S = GRACE_S + 40
#: No call to a node that is well takes so long, and any that waits for a silent one takes longer.
TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@dataclass(frozen=True)
class Scene:
    settings: ProducerSettings
    client: Client
    node: EmbeddedBroker
    """the one that freezes"""
    silent: int
    """a partition of it"""
    others: list[int]
    """partitions of the other nodes"""

    def given(self, **more: float) -> dict[str, Any]:
        """To a worker."""
        given = {"lease_s": LEASE_S, "min_step_s": 0.02, "grace_s": GRACE_S, **more}
        return {"queue": self.settings.queue, "partitions": PARTITIONS, "engine": "null", **given}

    def begin(self, tokens: int) -> dict[int, Job]:
        """A job in mid-sentence in each of these partitions."""
        jobs = {
            index: self.client.submit(PROMPT, max_new_tokens=tokens, job_id=f"{index}-{tokens}")
            for index in (self.silent, *self.others)
        }
        wait_until(lambda: all(running(job, tokens=20) for job in jobs.values()))
        return jobs


@pytest.fixture
def scene(cluster: LocalCluster, queue: str) -> Iterator[Scene]:
    settings = ProducerSettings(
        redis_url=cluster.url,  # type: ignore[arg-type]
        queue=queue,
        partitions=PARTITIONS,
        poll_interval_s=0.5,
        redis_timeout_s=TIMEOUT_S,
        redis_retries=1,
    )
    homes = [cluster.node_of(Partition(queue, index)) for index in range(PARTITIONS)]
    others = [index for index, home in enumerate(homes) if home is not homes[0]]
    with Client(settings) as client:
        yield Scene(settings, client, homes[0], 0, others)


@pytest.fixture
def workers(cluster: LocalCluster, scene: Scene) -> Iterator[list[WorkerProcess]]:
    with (
        serving("one", cluster.url, **scene.given()) as one,
        serving("two", cluster.url, **scene.given()) as two,
    ):
        yield [one, two]


def tokens_of(scene: Scene, jobs: dict[int, Job]) -> int:
    """In the partitions that answer."""
    return sum(jobs[index].status().tokens for index in scene.others)


def test_the_other_partitions_keep_their_pace_and_their_jobs(
    cluster: LocalCluster, scene: Scene, workers: list[WorkerProcess]
) -> None:
    # given
    jobs = scene.begin(800)
    streams = {i: Listeners(scene.settings, job.id, timeout_s=90) for i, job in jobs.items()}
    before, began = tokens_of(scene, jobs), time.monotonic()
    time.sleep(2)
    pace = (tokens_of(scene, jobs) - before) / (time.monotonic() - began)
    # when
    with cluster.frozen(scene.node):
        before, began = tokens_of(scene, jobs), time.monotonic()
        time.sleep(FROZEN_S)
        pace_beside = (tokens_of(scene, jobs) - before) / (time.monotonic() - began)
    # then
    assert pace_beside > 0.4 * pace  # this machine may stall, too
    for index, stream in streams.items():
        assert_echo(stream.events(), PROMPT, 800)
        assert index == scene.silent or jobs[index].status().epoch == 1
    assert all(worker.running for worker in workers)


def test_workers_drain_and_start_beside_it(cluster: LocalCluster, scene: Scene) -> None:
    # given: workers that take their time, so that none of their jobs ends
    slow, fast = scene.given(min_step_s=0.1), scene.given(min_step_s=0.005)
    with (
        serving("one", cluster.url, **slow) as one,
        serving("two", cluster.url, **slow) as two,
    ):
        jobs = scene.begin(600)
        streams = [Listeners(scene.settings, job.id, timeout_s=90) for job in jobs.values()]
        with cluster.frozen(scene.node):
            # when
            for worker in (one, two):
                began = time.monotonic()
                assert worker.terminate() == 0
                assert time.monotonic() - began < DRAIN_S
            # then: what could be handed back was
            assert {jobs[index].status().status for index in scene.others} == {"queued"}
            a_third_starts(cluster, scene, jobs, fast)
    # and: afterwards all is well
    with serving("four", cluster.url, **fast):
        for stream in streams:
            assert_echo(stream.events(), PROMPT, 600)


def a_third_starts(
    cluster: LocalCluster, scene: Scene, jobs: dict[int, Job], given: dict[str, Any]
) -> None:
    """While the node says nothing: it serves, and drains."""
    with WorkerProcess("three", cluster.url, **given) as third:
        # then: it says what is wrong, and serves
        wait_until(lambda: third.http("/healthz") is not None)
        finished = [jobs[index] for index in scene.others]
        wait_until(lambda: {job.status().status for job in finished} == {"finished"})
        assert third.http("/readyz") is None
        wait_until(lambda: "partition 0 is not well" in third.log)
        began = time.monotonic()
        assert third.terminate() == 0
        assert time.monotonic() - began < DRAIN_S


def test_jobs_whose_tokens_cannot_be_kept_are_given_up(cluster: LocalCluster, scene: Scene) -> None:
    # given: a worker at full speed, so that the tokens of a silent partition pile up
    with serving("fast", cluster.url, **scene.given(min_step_s=0, lease_s=10)) as worker:
        jobs = scene.begin(1_000_000)
        # when
        with cluster.frozen(scene.node):
            wait_until(lambda: "partition 0: its 1 jobs are left to others" in worker.log)
            # then
            before = tokens_of(scene, jobs)
            wait_until(lambda: tokens_of(scene, jobs) > before + 10_000)
            assert {jobs[index].status().epoch for index in scene.others} == {1}
        # and: it is taken up again from its log
        wait_until(lambda: jobs[scene.silent].status().epoch > 1)
        tokens = jobs[scene.silent].status().tokens
        wait_until(lambda: jobs[scene.silent].status().tokens > tokens)


def test_the_other_threads_of_a_client_go_on(cluster: LocalCluster, scene: Scene) -> None:
    # given: threads that meet the silent node again and again
    client = scene.client
    silent = client.submit("x", job_id=f"{scene.silent}-waits")
    ends: list[str] = []

    def stream_the_silent_one() -> None:
        ends.extend(event.type for event in silent.stream(timeout_s=90))

    threads = [threading.Thread(target=stream_the_silent_one) for _ in range(4)]
    with cluster.frozen(scene.node):
        for thread in threads:
            thread.start()
        # when
        began, answered = time.monotonic(), [time.monotonic()]
        while time.monotonic() - began < 3 * TIMEOUT_S:
            for index in scene.others:
                other = client.submit("y", job_id=f"{index}-{len(answered)}")
                other.cancel()
                assert [event.type for event in other.stream()] == ["cancelled"]
                answered.append(time.monotonic())
    # then
    waits = sorted(later - earlier for earlier, later in pairwise(answered))
    assert waits[-2] < TIMEOUT_S  # this machine may stall once
    # and: those that waited hear their end
    assert silent.cancel()
    for thread in threads:
        thread.join(120)
    assert ends == ["cancelled"] * 4


async def test_the_other_streams_of_a_client_go_on(cluster: LocalCluster, scene: Scene) -> None:
    # given: many streams of the silent node, which then look into their logs again and again
    async with AsyncClient(scene.settings) as client:
        names = [f"{scene.silent}-waits-{number}" for number in range(100)]
        waiting = [await client.submit("x", job_id=name) for name in names]
        silent = [asyncio.create_task(events_of(job)) for job in waiting]
        await until(lambda: len(channels(cluster, scene.node)) == len(waiting))
        with cluster.frozen(scene.node):
            began = time.monotonic()
            waits = []
            while time.monotonic() - began < 4 * TIMEOUT_S:
                # when
                for index in scene.others:
                    asked = time.monotonic()
                    other = await client.submit("z", job_id=f"{index}-{asked}")
                    assert (await other.status()).status == "queued"
                    stream = asyncio.create_task(events_of(other))
                    await other.cancel()
                    # then
                    assert await stream == ["cancelled"]
                    waits.append(time.monotonic() - asked)
        assert sorted(waits)[-2] < TIMEOUT_S  # this machine may stall once
        # and: those that waited hear their ends
        for job in waiting:
            assert await job.cancel()
        assert await asyncio.gather(*silent) == [["cancelled"]] * len(waiting)


async def events_of(job: AsyncJob) -> list[str]:
    return [event.type async for event in job.stream(timeout_s=90)]
