"""`rose doctor` against Redis servers that are right, and wrong in one thing each."""

import re
from collections.abc import Callable

import pytest
import redis

from rose.protocol import Partition
from rose_cli.doctor import server as server_checks
from rose_cli.doctor.findings import Finding, Verdict
from rose_cli.local.broker import EmbeddedBroker, free_port
from rose_cli.local.services import WorkerProcess
from rose_producer import Client, ProducerSettings
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.cluster import LocalCluster
from tests.support.doctor import examined, settings_of, wrong
from tests.support.troubles import unable_to_save

pytestmark = needs_redis_server


def test_the_shipped_configuration_is_well_and_stays_untouched(
    shipped: EmbeddedBroker, admin: redis.Redis
) -> None:
    found = examined(settings_of(shipped))
    assert wrong(found) == {}
    expected = {
        "redis",
        "replay",
        "eviction",
        "durability",
        "memory",
        "rights",
        "write",
        "clock",
        "queue",
    }
    assert set(found) == expected
    assert admin.dbsize() == 0


def test_a_redis_that_cannot_serve_is_not_said_to_be_away(own_redis: EmbeddedBroker) -> None:
    settings = ProducerSettings(redis_url=own_redis.url, redis_retries=0)

    with redis.Redis(port=own_redis.port) as admin, unable_to_save(admin):
        finding = examined(settings)["redis"]

    assert (finding.verdict, finding.todo) == (Verdict.FAIL, "mend there what it says")
    assert finding.says.startswith("Redis cannot serve now, and says: MISCONF ")


@pytest.mark.parametrize(
    ("make_wrong", "make_right", "expected"),
    [
        (
            "CONFIG SET maxmemory-policy allkeys-lru",
            "CONFIG SET maxmemory-policy noeviction",
            {"eviction": Verdict.FAIL},
        ),
        ("CONFIG SET appendonly no", "CONFIG SET appendonly yes", {"durability": Verdict.FAIL}),
        (
            "CONFIG SET appendfsync everysec",
            "CONFIG SET appendfsync always",
            {"durability": Verdict.WARN},
        ),
        (
            "ACL SETUSER default resetkeys -@all",
            "ACL SETUSER default ~* +@all",
            {"replay": Verdict.FAIL},
        ),
        (
            "ACL SETUSER default -xack",
            "ACL SETUSER default +@all",
            {"replay": Verdict.FAIL},
        ),
        ("CONFIG SET timeout 300", "CONFIG SET timeout 0", {"timeout": Verdict.WARN}),
        (
            "CONFIG SET maxmemory 1",
            "CONFIG SET maxmemory 0",
            {"memory": Verdict.FAIL, "write": Verdict.FAIL},
        ),
        (
            "REPLICAOF 127.0.0.1 1",
            "REPLICAOF NO ONE",
            {"role": Verdict.FAIL, "write": Verdict.FAIL},
        ),
    ],
)
def test_a_server_that_is_wrong_in_one_thing(
    shipped: EmbeddedBroker,
    admin: redis.Redis,
    make_wrong: str,
    make_right: str,
    expected: dict[str, Verdict],
) -> None:
    # given
    admin.execute_command(*make_wrong.split())
    try:
        # when
        found = examined(settings_of(shipped))
    finally:
        admin.execute_command(*make_right.split())
    # then
    assert wrong(found) == expected


def test_a_redis_that_is_too_old(shipped: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("rose_cli.local.broker._OLDEST", (99, 0))
    # when
    found = examined(settings_of(shipped))
    # then
    assert wrong(found) == {"redis": Verdict.FAIL}
    assert re.search(r"version [\d.]+ is too old", found["redis"].says)
    assert "7.0" in found["redis"].todo


@pytest.mark.parametrize(
    ("skew_s", "verdict", "says"),
    [(100, Verdict.FAIL, "behind"), (-3, Verdict.WARN, "ahead of")],
)
def test_clocks_that_differ(
    shipped: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    skew_s: float,
    verdict: Verdict,
    says: str,
) -> None:
    # given
    real = server_checks.time.time
    monkeypatch.setattr(server_checks.time, "time", lambda: real() + skew_s)
    # when
    found = examined(settings_of(shipped))["clock"]
    # then
    assert found.verdict is verdict
    assert says in found.says


def test_jobs_that_nobody_serves(shipped: EmbeddedBroker, admin: redis.Redis) -> None:
    # given
    with Client(settings_of(shipped)) as client:
        client.submit("x")
    admin.xadd(Partition("default").dead, {"job": b"x"})
    try:
        # when
        found = examined(settings_of(shipped))
    finally:
        admin.flushall()
    # then
    assert wrong(found) == {"queue": Verdict.WARN, "letters": Verdict.WARN}


def test_a_worker_is_seen(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker()
    found = examined(ProducerSettings(redis_url=broker.url, queue=queue))
    assert "serves null" in found["queue"].says


def test_placement_that_something_is_wanting_for(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    settings = ProducerSettings(redis_url=broker.url, queue=queue)
    raw, model = redis.Redis.from_url(broker.url, protocol=2), Partition(queue).model

    def says(placement: str) -> Finding:
        wait_until(lambda: raw.hget(model, "placement") == placement.encode())
        return examined(settings)["placement"]

    # given / when / then
    start_worker(placement_s=1)
    assert says("").says == "begins with the second worker"
    start_worker(placement_s=1)
    assert says("1").verdict is Verdict.OK
    other = start_worker()
    found = says(f"without {other.name}")
    assert found.verdict is Verdict.WARN
    assert f"worker {other.name} is without" in found.says


def test_a_cluster() -> None:
    with LocalCluster(nodes=1) as cluster:
        # given
        cluster.ask(cluster.nodes[0], "CONFIG", "SET", "appendonly", "no")
        # when
        found = examined(ProducerSettings(redis_url=cluster.url, partitions=2))
    # then
    assert wrong(found) == {"durability": Verdict.FAIL}
    assert "queue" in found


def test_a_redis_that_is_away() -> None:
    found = examined(ProducerSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0"))
    assert wrong(found) == {"redis": Verdict.FAIL}


def test_keys_of_tenants_that_somebody_has_written_over_are_named(
    broker: EmbeddedBroker, queue: str
) -> None:
    # given
    settings = ProducerSettings(redis_url=broker.url, queue=queue)
    own = Partition(queue).load.removesuffix("load")
    direct = redis.Redis(port=broker.port)
    direct.set(f"{own}tenants:limits", "somebody's")
    # when / then
    found = examined(settings)["tenants"]
    assert found.verdict is Verdict.FAIL
    assert found.says.startswith(f"{own}tenants:limits holds")
    assert "rose tenants set" in found.todo
    # and one that the next job makes anew
    direct.delete(f"{own}tenants:limits")
    direct.set(f"{own}shares:ready", "somebody's")
    assert "rebuilds it" in examined(settings)["tenants"].todo
    with Client(settings) as client:
        client.submit("x", tenant="mail")
    after = examined(settings)["tenants"]
    assert after.verdict is Verdict.WARN
    assert f"{own}shares:ready; it was rebuilt" in after.says


def test_a_queue_that_nobody_serves_beside_one_that_has_a_worker(
    own_redis: EmbeddedBroker,
) -> None:
    # given
    settings = ProducerSettings(redis_url=own_redis.url, queue="defualt")
    assert examined(settings)["queue"].verdict is Verdict.OK  # no worker has come anywhere
    with WorkerProcess("w", own_redis.url, engine="null") as worker:
        worker.wait_ready()
        with Client(redis_url=own_redis.url) as client:
            wait_until(client.queues)
        # when
        finding = examined(settings)["queue"]
    # then
    assert finding.verdict is Verdict.WARN
    assert "no worker serves queue defualt, did you mean default?" in finding.says
    assert "ROSE_QUEUE" in finding.todo


def test_another_number_of_partitions_than_the_workers_is_a_fault(
    own_redis: EmbeddedBroker,
) -> None:
    # given
    settings = ProducerSettings(redis_url=own_redis.url, partitions=3)
    with WorkerProcess("w", own_redis.url, engine="null", partitions=2) as worker:
        worker.wait_ready()
        # when
        finding = examined(settings)["partitions"]
    # then
    assert finding.verdict is Verdict.FAIL
    assert finding.says.startswith(
        "ROSE_PARTITIONS is 3 here, and the workers of queue default have 2"
    )
