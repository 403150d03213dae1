"""The shipped users may do all they ever do, and nothing else."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from rose.protocol import GROUP, Partition, Priority
from rose.protocol.vocabulary import encode_vocabulary
from rose_cli.local.broker import EmbeddedBroker, free_port
from rose_producer import CancelledEvent, Client, ServedModel
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.listeners import Listeners
from tests.support.proxy import Proxy
from tests.support.redis_users import PASSWORDS, Watch, allowed, guarded_server
from tests.support.users_at_work import USERS, produce_and_serve, scale, settings, url

pytestmark = needs_redis_server

#: Allowed though the workload here does not use them.
SPARE = {
    # Clients of a cluster do.
    *(("command", ""), ("cluster|slots", ""), ("cluster|shards", "")),
    *(("ssubscribe", ""), ("sunsubscribe", ""), ("spublish", "")),
    # A worker's start asks it; MONITOR does not show what is for administrators.
    ("acl|dryrun", ""),
    # A stream that a hostile entry has blocked is made anew.
    ("del", "jobs"),
    # Of tenants: what depends on who comes first; jobs of theirs that come in a row, and those that
    # somebody has taken out of their order.
    *(("zadd", "shares"), ("zrem", "shares"), ("zrange", "shares"), ("zcard", "shares")),
    *(("zscore", "shares"), ("xadd", "idle"), ("zcard", "running"), ("hdel", "shares")),
    *(("xgroup|setid", "jobs"), ("xrange", "jobs"), ("xadd", "jobs")),
    # MONITOR shows that a worker listens to the job streams; wake-ups are read in the same call.
    ("xread", "idle"),
    # Where somebody has put a key of another type.
    *(("del", "shares"), ("del", "idle"), ("zunionstore", "shares"), ("zrange", "running")),
    # Of thoughts, which the model here has none of.
    *(("get", "seal"), ("set", "seal")),
    # When somebody's script does not end.
    ("script|kill", ""),
    # Gives up what one has.
    ("unsubscribe", ""),
}

#: A gateway's scripts do as a producer's, who is seen to cancel a job that waits and to delete one
#: that runs. What Redis says of a script's call does not tell its keys.
SPARE_OF = {
    # A line of `rose batch run` that goes on from a response.
    "producer": {
        (command, "conversation")
        for command in (
            *("eval", "evalsha", "hdel", "hexists", "hget", "hincrby", "hset", "hsetnx"),
            "pexpire",
        )
    },
    "scaler": {("eval", "shares"), ("zcard", "shares")},
    # Where several workers place jobs.
    "worker": {
        *(("hlen", "workers"), ("hmget", "placement"), ("hset", "placement")),
        *(("hdel", "placement"), ("hlen", "placement"), ("expire", "placement")),
        ("del", "placement"),
        *(("rename", "placement"), ("unlink", "placement"), ("zadd", "placement")),
        *(("zrem", "placement"), ("zrange", "placement"), ("bzpopmin", "placement")),
    },
    "gateway": {
        *(("xadd", "tokens"), ("hdel", "state"), ("get", "vocabulary")),
        *(("eval", "limit"), ("evalsha", "limit")),
        *(("eval", "conversation"), ("evalsha", "conversation")),
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
