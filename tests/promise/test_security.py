"""The shipped users and redis.conf, on a real redis-server: enough for all they do, and no more."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, ResponseError
from redis.retry import Retry

from rose.errors import BrokerUnavailable
from rose.protocol import GROUP, Partition, Priority
from rose.protocol.vocabulary import encode_vocabulary
from rose_cli.demo.broker import EmbeddedBroker, free_port
from rose_producer import CancelledEvent, Client, ServedModel
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.listeners import Listeners
from tests.support.proxy import Proxy
from tests.support.redis_users import (
    DEPLOY,
    PASSWORDS,
    Watch,
    allowed,
    filled_users,
    guarded_server,
    rules,
)
from tests.support.users_at_work import PARTITION, USERS, produce_and_serve, scale, settings, url

pytestmark = needs_redis_server

#: Allowed though the workload here does not use them.
SPARE = {
    # Clients of a cluster do.
    *(("command", ""), ("cluster|slots", ""), ("cluster|shards", "")),
    *(("ssubscribe", ""), ("sunsubscribe", ""), ("spublish", "")),
    # A worker's start asks it; MONITOR does not show what is for administrators.
    ("acl|dryrun", ""),
    # Clients and workers of the version before do, which share the queue during an upgrade.
    *(("xautoclaim", "jobs"), ("hget", "load"), ("persist", "state")),
    # A stream that a hostile entry has blocked is made anew.
    ("del", "jobs"),
    # Of tenants: what depends on who comes first; jobs of theirs that come in a row, and those that
    # somebody has taken out of their order; what the version before has parked.
    *(("zadd", "shares"), ("zrem", "shares"), ("zrange", "shares"), ("zcard", "shares")),
    *(("zscore", "shares"), ("xadd", "idle"), ("zcard", "running"), ("hdel", "shares")),
    *(("xgroup|setid", "jobs"), ("xrange", "jobs"), ("xadd", "jobs")),
    *(("exists", "tenants"), ("hscan", "tenants"), ("hdel", "tenants"), ("del", "tenants")),
    *(("zrange", "tenants"), ("zrem", "tenants")),
    *(("zscore", "tenant"), ("expire", "tenant")),
    # MONITOR shows that a worker listens to the job streams; the bell is read in the same call.
    ("xread", "idle"),
    # Where somebody has put a key of another type.
    *(("del", "shares"), ("del", "idle"), ("zunionstore", "shares"), ("zrange", "running")),
    # When somebody's script does not end.
    ("script|kill", ""),
    # Gives up what one has.
    ("unsubscribe", ""),
}


#: A gateway's scripts do as a producer's, who is seen to cancel a job that waits and to delete one
#: that runs. What Redis says of a script's call does not tell its keys.
SPARE_OF = {
    "scaler": {("eval", "shares"), ("zcard", "shares")},
    "gateway": {
        *(("xadd", "tokens"), ("hdel", "state"), ("get", "vocabulary")),
        *(("eval", "limit"), ("evalsha", "limit")),
        # A tenant's job that waits is cancelled.
        *(("expire", "state"), ("expire", "tokens"), ("expire", "idempotency")),
        ("xdel", "jobs"),
        # Sweeps of files, every minute or so.
        *(("zrangebyscore", "expiring"), ("zrangebyscore", "garbage")),
        *(("zadd", "expiring"), ("zrem", "expiring")),
        # A batch that another gateway has begun.
        *(("get", "ended"), ("hget", "parts")),
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with guarded_server(tmp_path_factory.mktemp("acl")) as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: EmbeddedBroker) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2, socket_timeout=60) as admin:
        yield admin


@pytest.fixture(scope="module")
def proxies(server: EmbeddedBroker) -> Iterator[dict[str, Proxy]]:
    """One for each user, to tell their connections apart."""
    with ExitStack() as stack:
        yield {user: stack.enter_context(Proxy(server.port)) for user in USERS}


@dataclass
class Done:
    """What is left of the whole workload."""

    watch: Watch
    logs: str
    """of the workers"""
    denied: list[dict[str, object]]
    """Redis' ACL LOG"""


@pytest.fixture(scope="module")
def workload(admin: redis.Redis, proxies: dict[str, Proxy]) -> Done:
    """Everything that the four users ever do, once; each part checks that it was done."""
    watch = Watch()
    admin.acl_log_reset()
    with watch.watching(admin):
        logs = produce_and_serve(admin, proxies)
        scale(proxies["scaler"])
    return Done(watch, logs, admin.acl_log())


def test_the_users_can_do_all_they_have_to(workload: Done) -> None:
    assert workload.denied == []


@pytest.mark.parametrize("user", USERS)
def test_the_users_can_do_nothing_that_they_never_do(
    workload: Done, proxies: dict[str, Proxy], user: str
) -> None:
    # when
    used = workload.watch.used(proxies[user])
    # then
    assert len(used) > 3
    assert allowed()[user] - used - SPARE - SPARE_OF.get(user, set()) == set()


def test_a_producer_can_do_all_it_has_to_on_a_cluster(tmp_path: Path) -> None:
    # given: a cluster of one; the default bus port is 10,000 higher, which may exceed 65,535
    options = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with (
        guarded_server(tmp_path, **options) as node,
        redis.Redis.from_url(node.url, protocol=2) as admin,
    ):
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"))
        reach = url("producer", node.port).replace("redis://", "redis+cluster://")
        given = settings("producer", node.port).model_copy(update={"redis_url": SecretStr(reach)})
        with Client(given) as client:
            # when
            job = client.submit("x", idempotency_key="k")
            listeners = Listeners(given, job.id)
            assert client.queue_status().waiting["normal"] == 1
            assert job.cancel()
            # then
            assert listeners.events() == [CancelledEvent(index=0)]
            assert job.status().status == "cancelled"
        assert admin.acl_log() == []


def test_a_gateway_can_do_what_it_does_with_jobs(
    server: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: a queue of its own, and a model with a vocabulary
    place = Partition("secured")
    admin.xgroup_create(place.jobs(Priority.NORMAL), GROUP, "0", mkstream=True)
    admin.hset(place.model, mapping={"name": "m", "fingerprint": "0a"})
    admin.set(place.vocabulary("0a"), encode_vocabulary([b"a"]))
    with Client(redis_url=url("gateway", server.port), queue="secured") as client:
        # when
        job = client.submit("x", idempotency_key="k", record=b"r", owner="o")
        unwanted = client.submit("y", idempotency_key="l")
        assert unwanted.delete()
        # then
        assert job.record().record == b"r"
        assert client.submit("x", idempotency_key="k").id == job.id
        assert job.cancel()
        assert job.delete()
        # and it reads what a model's tokens are
        model = ServedModel(name="m", fingerprint="0a", workers=0)
        assert client.vocabulary(model) == (b"a",)


def test_no_password_is_logged(workload: Done) -> None:
    assert "worker third serves" in workload.logs
    assert not any(password in workload.logs for password in PASSWORDS.values())


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("producer", ["XREADGROUP", "GROUP", GROUP, "me", "STREAMS", "{p}jobs:normal", ">"]),
        ("producer", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("producer", ["XRANGE", "{p}dead", "-", "+"]),
        ("producer", ["XTRIM", "{p}jobs:normal", "MAXLEN", "0"]),
        ("producer", ["EXPIRE", "{p}jobs:normal", "0"]),
        ("producer", ["SET", "{p}state:0-x", "gone"]),
        ("producer", ["HSET", "{p}model", "context_tokens", "1"]),
        ("producer", ["EVAL", "return redis.call('DEL', KEYS[1])", "1", "{p}jobs:normal"]),
        ("producer", ["EVAL", "return redis.call('GET', 'other')", "0"]),
        ("producer", ["GET", "{p}idempotency:other:x"]),
        ("producer", ["EVAL", "return redis.call('GET', KEYS[1])", "1", "{p}idempotency:other:x"]),
        ("producer", ["SCRIPT", "KILL"]),
        ("producer", ["PSUBSCRIBE", "*"]),
        ("producer", ["SUBSCRIBE", "other"]),
        ("worker", ["SET", "{p}idempotency:x", "0-x"]),
        ("worker", ["XGROUP", "DESTROY", "{p}jobs:normal", GROUP]),
        ("worker", ["HSET", "other", "a", "b"]),
        ("scaler", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("scaler", ["XINFO", "GROUPS", "other"]),
        ("scaler", ["XLEN", "{p}dead"]),
        ("scaler", ["EVAL", "return redis.call('ZREM', KEYS[1], 'a')", "1", "{p}shares:ready"]),
        ("scaler", ["EVAL", "return redis.call('ZCARD', KEYS[1])", "1", "{p}shares:heads"]),
        ("operator", ["XRANGE", "{p}tokens:0-x", "-", "+"]),
        ("gateway", ["HSET", "rose:gateway:keys", "0", "a key of its own"]),
        ("gateway", ["HGETALL", "rose:gateway:keys"]),
        ("gateway", ["GET", "{p}idempotency:producer:x"]),
        ("gateway", ["XRANGE", "{p}jobs:normal", "-", "+"]),
        ("producer", ["HGET", "rose:gateway:keys", "0"]),
        ("worker", ["HGET", "rose:gateway:keys", "0"]),
    ],
)
def test_what_a_user_has_no_business_with_is_refused(
    server: EmbeddedBroker, user: str, words: list[str]
) -> None:
    prefix = PARTITION.state("").removesuffix("state:")
    refusal = r"[Nn]o permissions|can't run this command|can't access"
    with (
        redis.Redis.from_url(url(user, server.port), protocol=2) as client,
        pytest.raises(ResponseError, match=refusal),
    ):
        client.execute_command(*(word.replace("{p}", prefix) for word in words))


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "command",
    [
        *("KEYS *", "SCAN 0", "FLUSHALL", "CONFIG GET *", "GET other", "DEL other"),
        *("ACL LIST", "SCRIPT FLUSH", "SHUTDOWN", "MONITOR", "CLIENT LIST", "CLIENT KILL ID 1"),
        *("CLIENT PAUSE 9", "FUNCTION LIST", "INFO", "SAVE", "REPLICAOF NO ONE", "MULTI"),
    ],
)
def test_nobody_administers(server: EmbeddedBroker, user: str, command: str) -> None:
    with (
        redis.Redis.from_url(url(user, server.port), protocol=2) as client,
        pytest.raises(NoPermissionError),
    ):
        client.execute_command(*command.split())


@pytest.mark.parametrize("user", [*USERS, "default"])
def test_there_is_no_way_in_without_a_password(server: EmbeddedBroker, user: str) -> None:
    at_once = Retry(NoBackoff(), 0)
    # Without driver_info a connection begins with the test's own command.
    with redis.Redis(port=server.port, protocol=2, retry=at_once, driver_info=None) as nobody:
        with pytest.raises(redis.AuthenticationError, match="Authentication required"):
            nobody.ping()
        for password in ("", "nopass", f"{user.upper()}_SHA256"):
            with pytest.raises(redis.AuthenticationError, match="invalid username-password"):
                nobody.execute_command("AUTH", user, password)


def test_an_operator_ends_a_script_that_does_not_end(
    server: EmbeddedBroker, admin: redis.Redis
) -> None:
    # given: a producer whose script holds Redis up
    admin.config_set("busy-reply-threshold", 100)
    key = PARTITION.load
    with (
        redis.Redis.from_url(url("producer", server.port), protocol=2, socket_timeout=60) as bad,
        redis.Redis.from_url(url("operator", server.port), protocol=2) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        endless = pool.submit(bad.execute_command, "EVAL", "while true do end", "1", key)

        def killed() -> bool:
            with contextlib.suppress(ResponseError):  # NOTBUSY: it has not begun
                return bool(operator.execute_command("SCRIPT KILL"))
            return False

        # when
        wait_until(killed)
        # then
        with pytest.raises(ResponseError, match="killed by user"):
            endless.result(60)
        assert admin.ping()


def test_the_template_is_no_acl_file() -> None:
    """Nobody can forget to fill it in."""
    options = {"aclfile": str(DEPLOY / "users.acl")}
    server = EmbeddedBroker(fake=False, config=DEPLOY / "redis.conf", options=options)
    with pytest.raises(BrokerUnavailable, match=r"users\.acl"), server:
        pytest.fail("Redis has started")


def test_short_passwords_are_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        filled_users(PASSWORDS | {"scaler": "short"})
    assert "SCALER_PASSWORD" in refused.value.stderr
    assert "short" not in refused.value.stderr
    assert refused.value.stdout == ""


def test_passwords_come_from_files_too(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORDS["worker"] + "\n")
    from_file = filled_users({**PASSWORDS, "worker": ""}, WORKER_PASSWORD_FILE=str(secret))
    assert from_file == filled_users()


def test_the_shipped_configuration_keeps_every_promise(admin: redis.Redis) -> None:
    """Those that `rose doctor` does not look at; tests/cli/doctor/test_rights.py has the others."""
    assert admin.config_get("protected-mode")["protected-mode"] == "yes"
    assert admin.config_get("save")["save"] == ""


# What a person sees


@pytest.mark.parametrize(
    ("words", "user", "password", "says"),
    [
        (["submit", "x"], "producer", "wrong-secret-1234", "invalid username-password pair"),
        (["worker", "--engine=null", "--http-port=0"], "worker", "wrong-secret-1234", "invalid"),
        (["stream", "0-x"], "producer", "wrong-secret-1234", "user or password"),
        (["submit", "x"], "scaler", None, "no permissions"),
        (["status"], "scaler", None, "rights of each part"),
        (["dead-letters", "list"], "producer", None, "rights of each part"),
        (["stream", "0-x"], "scaler", None, "no permissions"),
        (["worker", "--engine=null", "--http-port=0"], "producer", None, "rights of each"),
    ],
)
def test_a_user_who_may_not_is_told_in_one_line(
    server: EmbeddedBroker, words: list[str], user: str, password: str | None, says: str
) -> None:
    # when
    reach = url(user, server.port, password)
    ended = run_rose(*words, ROSE_REDIS_URL=reach, ROSE_REDIS_RETRIES="1")
    # then
    assert (ended.returncode, ended.stdout) == (1, "")
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert (password or PASSWORDS[user]) not in ended.stderr


@pytest.mark.parametrize(
    "mistake",
    [
        "redis://u:half#other-half@127.0.0.1:1/0",
        "rediss://u:half@127.0.0.1:1/0?ssl_ca_cert=/misspelt",
        "redis://u:half@127.0.0.1:1/0?ssl_ca_certs=/without-tls",
    ],
)
def test_a_wrong_url_is_one_line_without_the_password(mistake: str) -> None:
    # when
    ended = run_rose("submit", "x", ROSE_REDIS_URL=mistake, ROSE_REDIS_RETRIES="0")
    # then
    assert "ROSE_REDIS_URL" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "half" not in ended.stderr
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "revoke",
    [
        ["DELUSER", "leaver"],
        ["SETUSER", "leaver", "resetchannels"],
        ["SETUSER", "leaver", "clearselectors"],
    ],
)
def test_the_streams_of_a_revoked_user_end_with_an_error(
    server: EmbeddedBroker, admin: redis.Redis, revoke: list[str]
) -> None:
    # given: a user with a producer's rights, who listens
    (user,) = [line for line in filled_users().splitlines() if line.startswith("user producer ")]
    admin.execute_command("ACL", "SETUSER", "leaver", "reset", *rules(user))
    given = settings("producer", server.port).model_copy(
        update={"redis_url": SecretStr(url("leaver", server.port, PASSWORDS["producer"]))}
    )
    with Client(given) as client:
        job = client.submit("x")
        channel = PARTITION.channel(job.id)
        listeners = Listeners(given, job.id)
        wait_until(lambda: admin.pubsub_numsub(channel)[0][1] == 2)
        # when
        admin.execute_command("ACL", *revoke)
        # then
        listeners.join()
        assert [type(error) for error in listeners.errors] == [BrokerUnavailable] * 2
        assert all(PASSWORDS["producer"] not in str(error) for error in listeners.errors)
