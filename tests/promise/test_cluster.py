"""Redis Cluster: three real nodes, the producer's side by hand-played workers, and real workers."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from rose.errors import BrokerUnavailable
from rose.protocol import Partition, partition_of
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, Client, Event, Job, ProducerSettings, Request
from tests.conftest import needs_redis_server
from tests.support.bench import token, wait_until
from tests.support.cluster import BenchAt, LocalCluster, channels
from tests.support.echo import serving
from tests.support.listeners import Listeners, assert_echo
from tests.support.script_calls import PREPARED

pytestmark = needs_redis_server

PARTITIONS = 6
PROMPT = "abc"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def settings(cluster: LocalCluster, queue: str) -> ProducerSettings:
    given = {"queue": queue, "partitions": PARTITIONS, "poll_interval_s": 0.5}
    return ProducerSettings(redis_url=cluster.url, **given)  # type: ignore[arg-type]


@pytest.fixture
def client(settings: ProducerSettings) -> Iterator[Client]:
    with Client(settings) as client:
        yield client


@pytest.fixture
def bench(cluster: LocalCluster, queue: str) -> Iterator[BenchAt]:
    bench = BenchAt(cluster.url, Partition(queue))
    yield bench
    bench.close()


@pytest.fixture
def workers(cluster: LocalCluster, queue: str) -> Iterator[list[WorkerProcess]]:
    given: dict[str, str | float] = {"queue": queue, "partitions": PARTITIONS, "lease_s": 2}
    given |= {"min_step_s": 0.01, "reclaim_interval_s": 0.2}
    with (
        serving("one", cluster.url, **given) as one,
        serving("two", cluster.url, **given) as two,
    ):
        yield [one, two]


@pytest.mark.parametrize("script", sorted(PREPARED))
def test_every_script_stays_in_one_slot(bench: BenchAt, script: str) -> None:
    call = PREPARED[script](bench)
    bench.call(call)  # CROSSSLOT would be an error


async def test_a_client_that_was_closed_asks_no_node(settings: ProducerSettings) -> None:
    client = AsyncClient(settings)
    await client.aclose()
    with pytest.raises(BrokerUnavailable, match="the client is closed"):
        await client.submit("ab")


def test_streams_listen_to_one_shard_only(cluster: LocalCluster, bench: BenchAt) -> None:
    # given: one subscriber with each client, and a token before they come
    job, lease = bench.begin()
    bench.append(lease, token(0))
    listeners = Listeners(bench.client.settings, job.id)
    channel = bench.partition.channel(job.id).encode()
    home = cluster.node_of(bench.partition)
    wait_until(lambda: cluster.ask(home, "PUBSUB", "SHARDNUMSUB", channel.decode())[1] == 2)
    # then
    assert not any(channel in channels(cluster, node) for node in cluster.nodes if node is not home)
    assert all(cluster.ask(node, "PUBSUB", "CHANNELS") == [] for node in cluster.nodes)
    # when
    bench.append(lease, token(1), token(2))
    bench.finish(lease, 3)
    # then
    assert [event.index for event in listeners.events()] == [0, 1, 2, 3]


def test_jobs_of_all_partitions_are_served(
    settings: ProducerSettings, client: Client, workers: list[WorkerProcess]
) -> None:
    # given
    jobs = client.submit_many([Request(PROMPT, sampling={"max_new_tokens": 5})] * 60)
    assert {partition_of(job.id) for job in jobs} == set(range(PARTITIONS))

    async def results() -> list[tuple[int, ...]]:
        async with AsyncClient(settings) as other:
            answers = await asyncio.gather(*(other.job(job.id).result(90) for job in jobs))
            return [answer.token_ids for answer in answers]

    # then: with both clients
    assert set(asyncio.run(results())) == {(97, 98, 99, 97, 98)}
    assert {job.result(90).token_ids for job in jobs} == {(97, 98, 99, 97, 98)}
    wait_until(lambda: client.queue_status().running == 0)
    assert sum(client.queue_status().waiting.values()) == 0


def test_submit_is_idempotent_on_every_partition(client: Client) -> None:
    # given
    requests = [Request("x", idempotency_key=f"order {n}") for n in range(30)]
    # when
    first, again = client.submit_many(requests), client.submit_many(requests)
    # then
    assert [job.id for job in first] == [job.id for job in again]
    assert len({partition_of(job.id) for job in first}) > 1
    assert client.queue_status().waiting["normal"] == 30


def test_cancelling_reaches_running_jobs(client: Client, workers: list[WorkerProcess]) -> None:
    # given
    running = client.submit_many([Request("x", sampling={"max_new_tokens": 100_000})] * 6)
    wait_until(lambda: all(job.status().tokens for job in running))
    # when
    assert all(job.cancel() for job in running)
    # then
    wait_until(lambda: {job.status().status for job in running} == {"cancelled"})


def test_a_node_that_dies_and_comes_back_is_a_pause(
    cluster: LocalCluster, settings: ProducerSettings, client: Client, workers: list[WorkerProcess]
) -> None:
    # given: a job on the node that dies, and one on another
    homes = [cluster.node_of(Partition(settings.queue, i)) for i in range(PARTITIONS)]
    lost = homes[0]
    other = next(i for i, home in enumerate(homes) if home is not lost)
    jobs = [client.submit(PROMPT, max_new_tokens=100, job_id=f"{i}-long") for i in (0, other)]
    streams = [Listeners(settings, job.id) for job in jobs]
    wait_until(lambda: all(stream.have(20) for stream in streams))
    # when
    lost.stop()
    assert_echo(streams[1].events(), PROMPT, 100)
    lost.start()
    cluster.wait_ok()
    # then
    assert_echo(streams[0].events(), PROMPT, 100)
    assert all(worker.running for worker in workers)


def test_a_slot_that_moves_is_a_pause(cluster: LocalCluster, bench: BenchAt) -> None:
    # given: two subscribers, and a target that knows no script
    job, lease = bench.begin()
    bench.append(lease, token(0))
    listeners = Listeners(bench.client.settings, job.id)
    wait_until(lambda: listeners.have(1))
    home = cluster.node_of(bench.partition)
    target = next(node for node in cluster.nodes if node is not home)
    cluster.ask(target, "SCRIPT", "FLUSH")
    # when
    cluster.move(bench.partition, target)
    bench.append(lease, token(1))
    channel = bench.partition.channel(job.id)
    wait_until(lambda: cluster.ask(target, "PUBSUB", "SHARDNUMSUB", channel)[1] == 2)
    bench.append(lease, token(2))
    bench.finish(lease, 3)
    # then
    assert [event.index for event in listeners.events()] == [0, 1, 2, 3]
    assert bench.client.submit("y").status().status == "queued"


def test_thousands_of_streams_share_a_connection_to_each_node(
    cluster: LocalCluster, settings: ProducerSettings, client: Client
) -> None:
    # given
    jobs = client.submit_many(["x"] * 600)

    def listening() -> list[int]:
        """Connections with subscriptions, by node."""
        return [
            len(re.findall(rb" ssub=[1-9]", cluster.ask(node, "CLIENT", "LIST")))
            for node in cluster.nodes
        ]

    def subscribed() -> int:
        return sum(len(channels(cluster, node)) for node in cluster.nodes)

    async def stream_all() -> list[int]:
        async with AsyncClient(settings) as other:

            async def events(job: Job) -> list[Event]:
                return [event async for event in other.job(job.id).stream(timeout_s=90)]

            streams = [asyncio.create_task(events(job)) for job in jobs]
            await asyncio.to_thread(wait_until, lambda: subscribed() == len(jobs))
            connections = await asyncio.to_thread(listening)
            for job in jobs:
                await other.job(job.id).cancel()
            assert {len(await stream) for stream in streams} == {1}
            return connections

    # when / then
    assert max(asyncio.run(stream_all())) == 1
