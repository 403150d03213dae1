"""`rose doctor` against Redis servers that are right, and wrong in one thing each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from rose.errors import ConfigurationError
from rose.protocol import Partition
from rose_cli.demo.broker import EmbeddedBroker, free_port
from rose_cli.demo.workers import WorkerProcess
from rose_cli.doctor import gateway as gateway_checks
from rose_cli.doctor import machine
from rose_cli.doctor import server as server_checks
from rose_cli.doctor.findings import Finding, Verdict
from rose_cli.doctor.rights import RIGHTS, Role
from rose_producer import Client, ProducerSettings
from rose_worker.settings import WorkerSettings
from tests.conftest import needs_redis_server
from tests.roseinfer.models import construct
from tests.support.bench import wait_until
from tests.support.cluster import LocalCluster
from tests.support.command import run_rose
from tests.support.gateway import running_gateway
from tests.support.redis_users import PASSWORDS, allowed, filled_users, guarded_server, rules
from tests.support.troubles import unable_to_save

pytestmark = needs_redis_server

#: Rights that doctor does not try: what any client of a cluster sends, what gives up,
#: and what a worker can do without.
UNTRIED = {
    "command",
    "cluster|slots",
    "cluster|shards",
    "unsubscribe",
    "sunsubscribe",
    "acl|dryrun",
    "sadd",  # there is no form of it that changes nothing
}

#: Of a key that is there, or for where somebody has put one of another type.
UNTRIED_THERE = {("del", "shares"), ("zunionstore", "shares"), ("zrange", "running")}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_server(tmp_path_factory.mktemp("acl")) as server:
        yield server


@pytest.fixture
def admin(shipped: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(shipped.url, protocol=2) as admin:
        yield admin


def settings_of(server: EmbeddedBroker, user: str = "admin") -> ProducerSettings:
    url = f"redis://{user}:{PASSWORDS[user]}@127.0.0.1:{server.port}/0"
    return ProducerSettings(redis_url=url, redis_retries=0)


def examined(settings: ProducerSettings, role: Role | None = None) -> dict[str, Finding]:
    findings = list(server_checks.examine(settings, role))
    assert all(bool(f.todo) == (f.verdict is not Verdict.OK) for f in findings)
    assert all("\n" not in f.says + f.todo for f in findings)
    return {finding.check: finding for finding in findings}


def wrong(findings: dict[str, Finding]) -> dict[str, Verdict]:
    return {f.check: f.verdict for f in findings.values() if f.verdict is not Verdict.OK}


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


@pytest.mark.parametrize("role", Role)
def test_the_shipped_users_have_their_rights_and_may_not_ask_for_settings(
    shipped: EmbeddedBroker, admin: redis.Redis, role: Role
) -> None:
    found = examined(settings_of(shipped, role.value), role)
    assert wrong(found) == {"settings": Verdict.WARN}
    assert found["redis"].says.startswith("version ")
    assert "administrator" in found["settings"].todo
    assert {"write", "clock"} <= set(found)
    assert admin.dbsize() == 0


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


@pytest.mark.parametrize(
    ("role", "right", "named"),
    [
        ("worker", "+xautoclaim", "XAUTOCLAIM on rose:{default:0}:jobs:*"),
        ("worker", "+script|load", "SCRIPT LOAD"),
        ("producer", "+publish", "PUBLISH on rose:{default:0}:channel:*"),
        ("producer", "+subscribe", "SUBSCRIBE on rose:{default:0}:channel:*"),
    ],
)
def test_a_user_with_a_right_too_few(
    shipped: EmbeddedBroker, admin: redis.Redis, role: str, right: str, named: str
) -> None:
    # given: the role's user, without one of its rights
    (line,) = [x for x in filled_users().splitlines() if x.startswith(f"user {role} ")]
    admin.execute_command("ACL", "SETUSER", role, "reset", *rules(line.replace(f" {right}", "")))
    try:
        # when
        found = examined(settings_of(shipped, role))
    finally:
        admin.execute_command("ACL", "SETUSER", role, "reset", *rules(line))
    # then
    assert found["rights"].verdict is Verdict.FAIL
    assert f"lacks rights of a {role}: {named}" in found["rights"].says


@pytest.mark.parametrize(
    ("right", "named"),
    [
        ("xack", "worker: XACK on rose:{default:0}:jobs:*"),
        ("xreadgroup", "worker: XREADGROUP on rose:{default:0}:jobs:*"),
        ("hlen", "gateway: HLEN on rose:gateway:keys"),
    ],
)
def test_a_user_who_is_nearly_all_may_be_no_producer_by_chance(
    shipped: EmbeddedBroker, admin: redis.Redis, right: str, named: str
) -> None:
    # given: what a producer needs, it has
    given = settings_of(shipped, "broad")
    admin.execute_command(
        *("ACL", "SETUSER", "broad", "reset", "on", f">{PASSWORDS['broad']}"),
        *("~*", "&*", "+@all", f"-{right}"),
    )
    # when
    found = examined(given)["rights"]
    # then
    assert found.verdict is Verdict.FAIL
    assert f"user broad lacks rights of a {named}" in found.says
    assert found.todo.endswith("--role producer")
    assert examined(given, Role.PRODUCER)["rights"].verdict is Verdict.OK


def test_a_worker_is_no_producer(shipped: EmbeddedBroker) -> None:
    found = examined(settings_of(shipped, "worker"), Role.PRODUCER)
    assert found["rights"].verdict is Verdict.FAIL
    assert "SET on rose:{default:0}:idempotency:*" in found["rights"].says


def test_a_user_without_scripts_is_told_once(shipped: EmbeddedBroker, admin: redis.Redis) -> None:
    # given
    password = PASSWORDS["producer"]
    narrow = [*("reset", "on", f">{password}", "~rose:*", "&rose:*"), "+@connection", "+@read"]
    url = f"redis://narrow:{password}@127.0.0.1:{shipped.port}/0"
    admin.execute_command("ACL", "SETUSER", "narrow", *narrow)
    # when
    found = examined(ProducerSettings(redis_url=url, redis_retries=0))
    # then
    assert wrong(found) == {"settings": Verdict.WARN, "rights": Verdict.FAIL}


#: For an upgrade, during which both versions share a queue. This one does without.
OF_THE_VERSION_BEFORE = {
    Role.PRODUCER: {("persist", "state")},
    Role.WORKER: {
        *((name, "tenants") for name in ("exists", "hscan", "hdel", "del", "zrange", "zrem")),
        *(("zscore", "tenant"), ("expire", "tenant")),
    },
}


@pytest.mark.parametrize("role", Role)
def test_the_rights_that_are_tried_are_those_of_the_shipped_user(role: Role) -> None:
    tried = {(name, kind) for kind, names in RIGHTS[role].items() for name in names}
    # The file gives scripts every kind of key, and names channels beside the commands.
    tried = {(n, "*" if n.startswith("eval") else k) for n, k in tried}
    tried = {(n, "" if n in ("publish", "subscribe") else k) for n, k in tried}
    tried = {(n, k.partition(":")[0]) for n, k in tried}  # one key of a kind
    given = {(n, k) for n, k in allowed()[role.value] if n not in UNTRIED}
    given = {(n, "*" if n.startswith("eval") else k) for n, k in given}
    given -= UNTRIED_THERE
    given -= OF_THE_VERSION_BEFORE.get(role, set()) | {("hget", "load")}
    sharded = {(n, k) for n, k in given if n in ("spublish", "ssubscribe")}
    assert tried == given - sharded


def test_a_redis_that_is_too_old(shipped: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("rose_cli.demo.broker._OLDEST", (99, 0))
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


# The machine


def test_a_machine_that_can_serve_the_built_in_model() -> None:
    found = {finding.check: finding for finding in machine.examine(WorkerSettings(), load=True)}
    assert found["device"].verdict is found["model"].verdict is Verdict.OK
    assert "built-in" in found["model"].says


def test_a_model_that_the_engine_does_not_support(tmp_path: Path) -> None:
    # given: one without any attention, which tells a context length or does not
    construct("MambaConfig", "MambaForCausalLM").save_pretrained(tmp_path / "short")
    endless = construct("MambaConfig", "MambaForCausalLM", max_position_embeddings=None)
    endless.save_pretrained(tmp_path / "endless")
    for settings, says in (
        (WorkerSettings(model=str(tmp_path / "short")), "linear_attention"),
        (WorkerSettings(model=str(tmp_path / "endless")), "linear_attention"),
        (WorkerSettings(model="/no/such/folder"), "/no/such/folder"),
        (WorkerSettings(device="warp"), "warp"),
    ):
        # when
        *_, last = machine.examine(settings, load=True)
        # then
        assert last.verdict is Verdict.FAIL
        assert says in last.says


# The command


def test_the_command_tells_a_line_each_and_fails_when_one_does(
    shipped: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: the null engine, so there is nothing of this machine to look at
    place = {"ROSE_ENGINE": "null", "ROSE_REDIS_URL": shipped.url}
    well = run_rose("doctor", "--json", **place)
    admin.config_set("maxmemory-policy", "volatile-ttl")
    try:
        # when
        ill = run_rose("doctor", **place)
    finally:
        admin.config_set("maxmemory-policy", "noeviction")
    # then
    assert well.returncode == 0, well.stdout
    assert [json.loads(x)["verdict"] for x in well.stdout.splitlines()] == ["ok"] * 9
    assert ill.returncode == 1
    (line,) = [x for x in ill.stdout.splitlines() if x.startswith("fail")]
    assert "volatile-ttl" in line
    assert "CONFIG SET maxmemory-policy noeviction" in line
    assert not any(secret in well.stdout + ill.stdout for secret in PASSWORDS.values())


# The gateway


def test_a_gateway_is_asked_as_its_clients_do(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., WorkerProcess]
) -> None:
    def found(url: str) -> Finding:
        (finding,) = gateway_checks.examine_gateway(url)
        return finding

    with running_gateway(broker.url, queue) as gateway:
        # given: no worker yet
        assert found(gateway.url).verdict is Verdict.WARN
        # when
        start_worker()
        wait_until(lambda: found(gateway.url).verdict is Verdict.OK)
        # then: with and without the path
        assert "serves null" in found(gateway.url.removesuffix("/v1")).says
    assert "does not answer" in found(gateway.url).says
    with pytest.raises(ConfigurationError, match="--gateway"):
        found("127.0.0.1:8080")


def test_a_gateway_that_asks_for_a_key(
    own_redis: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    place = {"ROSE_REDIS_URL": own_redis.url}
    settings = ProducerSettings(redis_url=own_redis.url)
    (without,) = gateway_checks.examine_keys(settings)
    secret = run_rose("keys", "create", "mine", **place).stdout.strip()
    with running_gateway(own_redis.url, "q") as gateway:
        # when
        (nobody,) = gateway_checks.examine_gateway(gateway.url)
        monkeypatch.setenv("OPENAI_API_KEY", secret)
        (known,) = gateway_checks.examine_gateway(gateway.url)
    # then
    assert without.verdict is Verdict.WARN
    assert nobody.verdict is Verdict.FAIL
    assert "OPENAI_API_KEY" in nobody.todo
    assert known.verdict is Verdict.WARN
    assert "serves no model" in known.says
    (with_one,) = gateway_checks.examine_keys(settings)
    assert with_one.says == "1 API key: requests need one"


def test_the_command_for_a_gateways_user(shipped: EmbeddedBroker) -> None:
    url = f"redis://gateway:{PASSWORDS['gateway']}@127.0.0.1:{shipped.port}/0"
    # when
    told = run_rose("doctor", "--role", "gateway", ROSE_REDIS_URL=url).stdout
    # then
    assert "user gateway has the rights of a producer and gateway" in told
    assert "rose keys create NAME" in told
    assert "device" not in told


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
    assert "makes it anew" in examined(settings)["tenants"].todo
    with Client(settings) as client:
        client.submit("x", tenant="mail")
    after = examined(settings)["tenants"]
    assert after.verdict is Verdict.WARN
    assert f"{own}shares:ready; it was made anew" in after.says
