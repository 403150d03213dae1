"""`rose doctor`, the part that asks Redis: is it what docs/redis.md says it must be?

Nothing is assumed about rights: what the user of the URL may not ask is said to be unknown.
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from rose.errors import BrokerUnavailable, MalformedMessage
from rose.protocol import Partition
from rose.protocol.status import QueueStatus
from rose.protocol.tenants import TenantsStatus
from rose.transport import broker_errors
from rose.transport.connection import connect
from rose.transport.failures import NO_LOG, loss_of_eviction
from rose.transport.replay import Replay, hello, primaries, replay_of, user_of
from rose_cli.doctor.findings import Finding, fail, ok, warn
from rose_cli.doctor.rights import Right, Role, describe, is_meant_for, missing
from rose_cli.local.broker import TOO_OLD, is_too_old
from rose_cli.queue_troubles import nobody_serves, other_partitions, served_queues
from rose_producer import Client, ProducerSettings

#: A host's clock may differ so much from Redis' before deadlines and latencies are wrong to see,
#: and before they are senseless.
_SKEW_WARN_S = 1.0
_SKEW_FAIL_S = 30.0

_FULL = 0.8


def examine(settings: ProducerSettings, role: Role | None) -> Iterator[Finding]:
    """`role`: what the user must be able to do; None for one of the two."""
    try:
        with broker_errors():
            client = connect(settings)
            first = Partition(settings.queue)
            for number, server in enumerate(primaries(client)):
                yield from _examine_server(server, number, first)
            home = _home_of(client, first)
            yield from _examine_use(
                home, first, role, sharded=isinstance(client, redis.RedisCluster)
            )
            # A gateway's user may not ask; the gateway's own answer says what is served.
            if role is not Role.GATEWAY:
                yield from _examine_queue(settings)
            client.close()
    except BrokerUnavailable as error:
        answered = isinstance(error.__cause__, ResponseError | BusyLoadingError)
        todo = "mend there what it says" if answered else "start it, or set ROSE_REDIS_URL"
        yield fail("redis", str(error), todo)


def _home_of(client: redis.Redis | redis.RedisCluster, partition: Partition) -> redis.Redis:
    if isinstance(client, redis.Redis):
        return client
    cluster: Any = client
    home: redis.Redis = cluster.get_redis_connection(cluster.get_node_from_key(partition.load))
    return home


# A server


def _examine_server(server: redis.Redis, number: int, partition: Partition) -> Iterator[Finding]:
    server.ping()
    about = hello(server)
    info = _info(server)
    where = f" (node {number + 1})" if number else ""
    yield _version(str(about.get("version") or info.get("redis_version") or ""), where)
    if about.get("role", info.get("role", "master")) != "master":
        yield fail("role", f"a replica{where}: it refuses writes", "name the primary in the URL")
    given = _settings(server, info)
    yield from _eviction(given, where)
    yield from _durability(given, info, where)
    yield from _memory(info, where)
    replay = replay_of(server, partition)
    yield from _replay(replay, where)
    unknown = [name for name, value in given.items() if value is None]
    if replay is Replay.UNKNOWN:
        unknown.append("the rights of the user default")
    if unknown:
        yield warn(
            "settings",
            f"{', '.join(unknown)} cannot be read{where}: the user may not CONFIG GET, or the "
            "service has none",
            "look as an administrator (--redis-url), or in the service's console",
        )


def _replay(replay: Replay, where: str) -> Iterator[Finding]:
    if replay is Replay.WHOLE:
        yield ok("replay", f"a restart replays all that scripts wrote{where}")
    elif replay is Replay.LOSSY:
        yield fail(
            "replay",
            f"the user default may not do what scripts did{where}: a restart loses it",
            "ACL SETUSER default off resetpass ~* &* +@all, and in the ACL file: docs/redis.md",
        )


def _ask(server: redis.Redis, *words: str) -> Any:
    """None where this Redis or this user does not have the command."""
    try:
        return server.execute_command(*words)
    except ResponseError:
        return None


def _pairs(reply: Any) -> dict[str, Any]:
    if isinstance(reply, dict):
        items = list(reply.items())
    else:
        flat = reply or []
        items = list(zip(flat[::2], flat[1::2], strict=True))
    return {_text(name): _text(value) for name, value in items}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _info(server: redis.Redis) -> dict[str, Any]:
    info = _ask(server, "INFO")
    return info if isinstance(info, dict) else {}


def _settings(server: redis.Redis, info: dict[str, Any]) -> dict[str, str | None]:
    """None for what cannot be asked. INFO tells two of them, where CONFIG is blocked."""
    known: dict[str, str | None] = {"maxmemory-policy": info.get("maxmemory_policy")}
    if "aof_enabled" in info:
        known["appendonly"] = "yes" if info["aof_enabled"] else "no"
    names = ("maxmemory-policy", "appendonly", "appendfsync", "timeout")
    return {
        name: _pairs(_ask(server, "CONFIG GET", name)).get(name) or known.get(name)
        for name in names
    }


def _version(text: str, where: str) -> Finding:
    too_old = is_too_old(text)
    if too_old is None:
        return warn("redis", f"its version cannot be read{where}", TOO_OLD)
    if too_old:
        return fail("redis", f"version {text} is too old{where}", TOO_OLD)
    return ok("redis", f"version {text}{where}")


def _eviction(given: dict[str, str | None], where: str) -> Iterator[Finding]:
    policy = given["maxmemory-policy"]
    if policy is None:
        return
    loss = loss_of_eviction(policy)
    if loss is None:
        yield ok("eviction", f"maxmemory-policy is {policy}{where}")
    else:
        yield fail("eviction", loss.describe(where), loss.remedy)


def _durability(
    given: dict[str, str | None], info: dict[str, Any], where: str
) -> Iterator[Finding]:
    log, fsync, timeout = given["appendonly"], given["appendfsync"], given["timeout"]
    if log == "no":
        yield fail("durability", NO_LOG.describe(where), NO_LOG.remedy)
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield fail("durability", f"the AOF cannot be written{where}", "is its disk full?")
    elif log == "yes" and fsync not in ("always", None):
        lost = "the last second" if fsync == "everysec" else "what the system has not written yet"
        yield warn(
            "durability",
            f"appendfsync is {fsync}{where}: a power cut may lose {lost}",
            "CONFIG SET appendfsync always where that must not be",
        )
    elif log == "yes":
        yield ok("durability", f"appendonly is yes, appendfsync {fsync or 'unknown'}{where}")
    if timeout not in ("0", None):
        yield warn(
            "timeout",
            f"Redis hangs up on who is silent for {timeout} s{where}",
            "CONFIG SET timeout 0: subscribers may be silent for long",
        )


def _memory(info: dict[str, Any], where: str) -> Iterator[Finding]:
    if "used_memory" not in info:
        return
    used, limit = int(info["used_memory"]), int(info.get("maxmemory", 0))
    says = f"{used >> 20} MiB used{f' of {limit >> 20} MiB' if limit else ', no limit'}{where}"
    if limit and used >= limit:
        yield fail(
            "memory",
            f"{says}: it is full, and refuses new jobs; those that are there go on",
            "raise maxmemory, or lower ROSE_RESULT_TTL_S and ROSE_MAX_QUEUED_BYTES",
        )
    elif limit and used > _FULL * limit:
        yield warn(
            "memory",
            says,
            "when it is full new jobs are refused: raise maxmemory, or lower ROSE_RESULT_TTL_S or "
            "ROSE_MAX_QUEUED_BYTES",
        )
    else:
        yield ok("memory", says)


# What the user of the URL can do there


def _examine_use(
    server: redis.Redis, partition: Partition, role: Role | None, *, sharded: bool
) -> Iterator[Finding]:
    lacks = {one: missing(server, partition, one, sharded=sharded) for one in Role}
    yield _rights(user_of(server), lacks, role, partition)
    yield from _write(server, partition)


def _rights(
    user: str, lacks: dict[Role, list[Right]], role: Role | None, partition: Partition
) -> Finding:
    may = [one for one in Role if not lacks[one]]
    if role is None and may:
        # Who has all rights but one of a worker's has those of a producer, and is hardly one.
        unfinished = [one for one in Role if lacks[one] and is_meant_for(one, lacks[one])]
    else:
        unfinished = [role] if role and role not in may else []
    if may and not unfinished:
        also = " and ".join(one.value for one in may)
        return ok("rights", f"user {user} has the rights of a {also}")
    # Of a user who is meant for one of the roles, not what he needs for the other.
    nearest = min(unfinished or Role, key=lambda one: len(lacks[one]))
    other_use = f", or name what it is for: --role {may[0]}" if may and role is None else ""
    return fail(
        "rights",
        f"user {user} lacks rights of a {nearest.value}: {_some(lacks[nearest], partition)}",
        f"compare with deploy/redis/users.acl{other_use}",
    )


def _some(lacks: list[Right], partition: Partition) -> str:
    shown, left = [describe(right, partition) for right in lacks[:4]], len(lacks) - 4
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def _write(server: redis.Redis, partition: Partition) -> Iterator[Finding]:
    """One entry in a log that is nobody's. Its id tells Redis' time, even to those who may not
    ask for it."""
    key = partition.tokens(f"doctor-{secrets.token_hex(8)}")
    began = time.time()
    try:
        entry: Any = server.xadd(key, {"event": b""})
        ended = time.time()
        server.delete(key)
    except NoPermissionError:
        return  # said already, among the rights
    except ResponseError as error:
        yield fail("write", f"Redis refuses to write: {error}", "see docs/redis.md, Trouble")
        return
    yield ok("write", f"stored and deleted in {(ended - began) * 1000:.1f} ms")
    yield _clock(int(entry.partition(b"-")[0]) / 1000, began, ended)


def _clock(theirs: float, began: float, ended: float) -> Finding:
    """`theirs` was read at some time between the two: what lies outside of them is skew."""
    skew = theirs - ended if theirs > ended else min(0.0, theirs + 0.001 - began)
    if abs(skew) <= _SKEW_WARN_S:
        return ok("clock", "this host and Redis agree on the time")
    says = f"Redis' clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    todo = "run an NTP client on both: deadlines and latencies go by these clocks"
    return (fail if abs(skew) > _SKEW_FAIL_S else warn)("clock", says, todo)


def _examine_queue(settings: ProducerSettings) -> Iterator[Finding]:
    try:
        with Client(settings) as client:
            status, tenants = client.queue_status(), client.tenants(0)
            served = [] if status.workers else served_queues(client)
    except (BrokerUnavailable, MalformedMessage) as error:
        if isinstance(error.__cause__, NoPermissionError):
            return  # said already, among the rights
        yield fail("queue", str(error), "see docs/redis.md, Trouble")
        return
    if differ := other_partitions(status, settings.partitions):
        yield fail("partitions", differ, "set the same number everywhere")
    waiting = sum(status.waiting.values())
    says = f"{settings.queue}: {waiting} waiting, {status.running} running"
    workers = len(status.workers)
    if not workers and (waiting or served or status.model is not None):
        nobody = nobody_serves(settings.queue, served)
        yield warn("queue", f"{says}, and {nobody}", "start one: rose worker, or set ROSE_QUEUE")
    elif status.model is None:
        yield ok("queue", f"{says}, no worker has come yet")
    else:
        plural = "" if workers == 1 else "s"
        yield ok("queue", f"{says}, {workers} worker{plural}, serves {status.model}")
    yield from _placement(status)
    yield from _foreign(tenants)
    if status.dead_letters:
        yield warn(
            "letters", f"{status.dead_letters} dead letters", "see why: rose dead-letters list"
        )


def _placement(status: QueueStatus) -> Iterator[Finding]:
    """Of a queue with a worker that is to place jobs."""
    if status.places:
        yield ok("placement", "jobs go to the worker that has the beginning of their prompts")
    elif status.places is False and len(status.workers) < 2:
        yield ok("placement", "begins with the second worker")
    elif status.places is False:
        name = f"worker {status.unplaced}" if status.unplaced else "a worker of the queue"
        yield warn(
            "placement",
            f"off: {name} is without ROSE_PLACEMENT_S or a prefix cache, or of an older version; "
            "one that was killed counts for an hour",
            "give all workers the same ROSE_PLACEMENT_S",
        )


def _foreign(tenants: TenantsStatus) -> Iterator[Finding]:
    """Keys of tenants that somebody has written over."""
    for key in tenants.overwritten:
        says = f"{key} holds something of another type, which is not roseinfer's"
        if key.endswith(":limits"):
            todo = "no weight or limit holds: DEL it, then rose tenants set"
        else:
            todo = "the next job of a tenant rebuilds it; see who writes there: docs/redis.md"
        yield fail("tenants", says, todo)
    for key in tenants.mended:
        yield warn(
            "tenants",
            f"another program had overwritten the key {key}; it was rebuilt",
            "see who writes there: docs/redis.md; HDEL the field mended of shares:clock when done",
        )
