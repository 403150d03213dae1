"""Which rights a Redis user lacks, tried without leaving a trace.

Redis looks at the rights before it looks at the arguments. So every command is sent in a form that
changes nothing: to a key that does not exist, or with an argument that is refused. What comes
back is NOPERM, or it may be done. The same rights as in deploy/redis/users.acl: a test compares.
"""

import secrets
from collections.abc import Collection
from enum import StrEnum

import redis
from redis.exceptions import NoPermissionError, ResponseError

from rose.protocol import Partition
from rose.protocol.keys import QUEUES, BulkKeys
from rose_gateway.access.keys import KEYS

_LIMITS = "rose:gateway:limit:"
_SEAL = "rose:gateway:seal"
_HISTORY = "rose:gateway:history:"
_CONVERSATIONS = "rose:gateway:conversation:"


class Role(StrEnum):
    PRODUCER = "producer"
    WORKER = "worker"
    GATEWAY = "gateway"


#: A kind of key, and a command that is for it.
Right = tuple[str, str]

#: Of whoever submits jobs of tenants.
_OF_TENANTS: dict[str, tuple[str, ...]] = {
    "jobs:tenants": ("xrange", "xdel"),
    "shares:tenants": ("hmget", "hset"),
    "shares:parked": ("zadd", "zrem", "zrange", "zcard"),
    "shares:ready": ("zadd", "zrem", "zscore", "zrange", "zrevrangebyscore", "zcard", "zcount"),
    "shares:clock": ("hmget", "hset"),
    "tenants:limits": ("hmget",),
    "idle:wakeup": ("xadd", "del"),
}
_PRODUCER: dict[str, tuple[str, ...]] = {
    "": ("script|load", "time"),
    "jobs": ("eval", "evalsha", "xadd", "xlen", "xpending", "xinfo|consumers"),
    "state": ("hmget", "hset", "hdel", "del", "exists", "expire"),
    "tokens": ("xadd", "xrange", "del", "expire"),
    "idempotency": ("get", "set", "del", "expire"),
    "load": ("hmget", "hincrby"),
    "model": ("hmget",),
    "workers": ("hmget",),
    "vocabulary": ("get",),
    "dead": ("xlen",),
    "queues": ("hgetall",),
    "conversation": (
        *("eval", "evalsha", "hdel", "hexists", "hget", "hincrby", "hset", "hsetnx", "pexpire"),
    ),
    "seal": ("get", "set"),
    "channel": ("subscribe", "publish"),
    "control": ("publish",),
    **_OF_TENANTS,
}
_GATEWAY = {
    **_PRODUCER,
    "keys": ("hget", "hlen"),
    "file": ("exists", "hmget", "hset", "del"),
    "stored": ("hmget", "hincrby", "del"),
    "files": ("zadd", "zrem", "zrangebylex", "zrevrangebylex"),
    "expiring": ("zadd", "zrem", "zrangebyscore"),
    "garbage": ("zadd", "zrem", "zrangebyscore"),
    "batch": (
        *("exists", "hexists", "hget", "hmget", "hgetall", "hset", "hsetnx", "hincrby"),
        "pexpire",
    ),
    "batches": ("zadd", "zremrangebylex", "zrevrangebylex", "pexpire"),
    "unfinished": ("zadd", "zrem", "zcard", "zscore", "zrangebyscore"),
    "unfinished:owner": ("srem", "scard", "smembers", "pexpire"),
    "ended": ("setbit", "bitcount", "get", "del"),
    "failed": ("setbit", "bitcount", "del"),
    "checkpoint": ("get", "set", "del"),
    "webhooks": ("hgetall", "hexists"),
    "webhook_jobs": ("zadd", "zrem", "zrangebyscore", "pexpire"),
    "webhook_batches": ("zadd", "zrem", "zrangebyscore", "pexpire"),
    "webhook_due": ("zadd", "zrem", "zscore", "zcard", "zrangebyscore"),
    "webhook_events": ("hget", "hset", "hdel"),
    "webhook_failures": ("hget", "hset", "hdel"),
    "webhook_dead": ("zadd", "zrem", "zcard", "zrange"),
    "history": ("expire", "zadd", "zrem", "zremrangebyrank", "zrevrange"),
    "limit": ("eval", "evalsha", "hmget", "hset", "pexpire", "zadd", "zcard", "zrange", "zrem"),
}

#: Commands by the kind of key that they are for.
RIGHTS: dict[Role, dict[str, tuple[str, ...]]] = {
    Role.PRODUCER: _PRODUCER,
    Role.GATEWAY: _GATEWAY,
    Role.WORKER: {
        "": ("script|load", "time"),
        "jobs": (
            *("eval", "evalsha", "exists", "xlen", "xpending", "xrange", "xread", "xreadgroup"),
            *("xgroup|create", "xgroup|delconsumer", "xinfo|groups", "xinfo|consumers"),
            "xinfo|stream",
            *("xclaim", "xack", "xdel", "del"),
        ),
        "state": ("hmget", "hset", "hincrby", "hdel", "expire", "persist"),
        "tokens": ("xadd", "xrange", "xrevrange", "expire", "del"),
        "idempotency": ("get", "expire"),
        "load": ("hmget", "hincrby"),
        "model": ("hmget", "hset"),
        "workers": ("hmget", "hset", "hdel", "hlen"),
        "placement:workers": ("hmget", "hset", "hdel", "hlen"),
        "placement:new": ("hmget", "hset", "hlen", "expire"),
        "placement:aside": ("zadd", "zrem", "zrange"),
        "placement:turn": ("zadd", "expire", "bzpopmin"),
        "vocabulary": ("set", "expire"),
        "dead": ("xadd", "xrange", "xrevrange", "xtrim", "xlen", "expire"),
        "reader": ("get", "set", "pttl", "pexpire"),
        "running": ("zadd", "zrem", "zrangebyscore", "zcard"),
        "reclaim": ("get", "set"),
        "idle": ("get", "set", "pttl", "exists", "del", "zadd", "bzpopmin"),
        "channel": ("publish",),
        "control": ("subscribe",),
        "queues": ("hset",),
        **_OF_TENANTS,
        "jobs:tenants": ("xadd", "xgroup|setid", "xrevrange"),
        "shares:tenants": (*_OF_TENANTS["shares:tenants"], "hdel"),
        "shares:parked": (*_OF_TENANTS["shares:parked"], "zremrangebyrank", "zscore"),
        "shares:ready": (*_OF_TENANTS["shares:ready"], "zrangebyscore", "exists"),
        "idle:wakeup": ("xadd", "xread", "xrevrange"),
    },
}

#: What follows the command, {} being the key: nothing here changes anything.
_HARMLESS = {
    "bitcount": ("{}",),
    "bzpopmin": ("{}", "never"),
    "del": ("{}",),
    "eval": ("return 1", "1", "{}"),
    "evalsha": ("0" * 40, "1", "{}"),
    "exists": ("{}",),
    "expire": ("{}", "never"),
    "get": ("{}",),
    "hdel": ("{}", "field"),
    "hexists": ("{}", "field"),
    "hget": ("{}", "field"),
    "hgetall": ("{}",),
    "hincrby": ("{}", "field", "some"),
    "hlen": ("{}",),
    "hmget": ("{}", "field"),
    "hset": ("{}", "field", "value", "odd"),
    "hsetnx": ("{}", "field"),
    "persist": ("{}",),
    "pexpire": ("{}", "never"),
    "pttl": ("{}",),
    "publish": ("{}", "doctor"),
    "scard": ("{}",),
    "script|load": ("return 1",),
    "set": ("{}", "value", "wrong"),
    "setbit": ("{}", "0", "2"),
    "smembers": ("{}",),
    "spublish": ("{}", "doctor"),
    "srem": ("{}", "job"),
    "time": (),
    "xack": ("{}", "group", "0-1"),
    "xadd": ("{}", "NOMKSTREAM", "*", "odd"),
    "xclaim": ("{}", "group", "doctor", "0", "0-1"),
    "xdel": ("{}", "0-1"),
    "xgroup|create": ("{}", "group", "0"),
    "xgroup|delconsumer": ("{}", "group", "doctor"),
    "xgroup|setid": ("{}", "group", "0"),
    "xinfo|consumers": ("{}", "group"),
    "xinfo|groups": ("{}",),
    "xinfo|stream": ("{}",),
    "xlen": ("{}",),
    "xpending": ("{}", "group"),
    "xrange": ("{}", "-", "+", "COUNT", "0"),
    "xread": ("COUNT", "1", "STREAMS", "{}", "$"),
    "xreadgroup": ("GROUP", "group", "doctor", "COUNT", "1", "STREAMS", "{}", ">"),
    "xrevrange": ("{}", "+", "-", "COUNT", "0"),
    "xtrim": ("{}", "MAXLEN", "some"),
    "zadd": ("{}", "some", "job"),
    "zcard": ("{}",),
    "zincrby": ("{}", "some", "job"),
    "zrange": ("{}", "1", "0"),
    "zrangebylex": ("{}", "+", "-"),
    "zrangebyscore": ("{}", "1", "0"),
    "zrem": ("{}", "job"),
    "zremrangebylex": ("{}", "+", "-"),
    "zrevrangebylex": ("{}", "-", "+"),
    "zremrangebyrank": ("{}", "0", "0"),
    "zrevrange": ("{}", "1", "0"),
    "zrevrangebyscore": ("{}", "0", "1"),
    "zcount": ("{}", "1", "0"),
    "zscore": ("{}", "job"),
}


def missing(server: redis.Redis, partition: Partition, role: Role, *, sharded: bool) -> list[Right]:
    """What its user may not do of what `role` has to.

    Raises: RedisError: it cannot be asked.
    """
    user = server.get_connection_kwargs().get("username") or ""
    keys = _keys(partition, user)
    # A cluster's messages go to the subscribers of one shard.
    needed = [
        (kind, f"s{name}" if sharded and name in ("subscribe", "publish") else name)
        for kind, name in _rights_of(role)
    ]
    return [(kind, name) for kind, name in needed if not _may(server, name, keys[kind])]


def describe(right: Right, partition: Partition) -> str:
    """Such as `XADD on rose:{default:0}:jobs:*`."""
    kind, name = right
    where = f" on {_pattern(partition, kind)}" if kind else ""
    return name.upper().replace("|", " ") + where


def is_meant_for(role: Role, lacks: Collection[Right]) -> bool:
    """Whether a user who lacks these rights has most of those that nobody but `role` needs."""
    others = {right for other in Role if other is not role for right in _rights_of(other)}
    own = set(_rights_of(role)) - others
    return 2 * len(own.intersection(lacks)) < len(own)


def _rights_of(role: Role) -> list[Right]:
    return [(kind, name) for kind, names in RIGHTS[role].items() for name in names]


def _keys(partition: Partition, user: str) -> dict[str, str]:
    """One of each kind; nobody has those that take a name."""
    nobody = f"doctor-{secrets.token_hex(8)}"
    return {
        "": "",
        "jobs": partition.state(nobody).replace(":state:", ":jobs:"),
        "state": partition.state(nobody),
        "tokens": partition.tokens(nobody),
        "idempotency": partition.idempotency(nobody, user),
        "load": partition.load,
        "model": partition.model,
        "workers": partition.workers,
        "vocabulary": partition.vocabulary(nobody),
        "dead": partition.dead,
        "reader": partition.reader,
        "running": partition.running,
        "reclaim": partition.reclaim,
        "idle": partition.state(nobody).replace(":state:", ":idle:"),
        **_tenant_keys(partition, nobody),
        **_placement_keys(partition, nobody),
        "channel": partition.channel(nobody),
        "control": partition.control,
        "queues": QUEUES,
        "keys": KEYS,
        "seal": _SEAL,
        "limit": f"{_LIMITS}{{{nobody}}}:rate",
        "history": f"{_HISTORY}{{{nobody}}}",
        "conversation": f"{_CONVERSATIONS}{{{nobody}}}",
        **_bulk_keys(nobody),
    }


def _tenant_keys(partition: Partition, nobody: str) -> dict[str, str]:
    one_of_a_kind = (
        *("shares:tenants", "shares:ready", "shares:clock"),
        *("jobs:tenants", "tenants:limits", "idle:wakeup"),
    )
    keys = {kind: partition.load.removesuffix("load") + kind for kind in one_of_a_kind}
    return keys | {"shares:parked": partition.parked(nobody)}


def _placement_keys(partition: Partition, nobody: str) -> dict[str, str]:
    names = ("placement:workers", "placement:new", "placement:aside")
    keys = {name: partition.load.removesuffix("load") + name for name in names}
    return keys | {"placement:turn": partition.own_turn(nobody)}


def _bulk_keys(name: str) -> dict[str, str]:
    """Of files, batches and webhooks: one of each kind, or with "*" what fits all of a kind."""
    return {
        "expiring": BulkKeys.EXPIRING,
        "garbage": BulkKeys.GARBAGE,
        "unfinished": BulkKeys.UNFINISHED,
        "unfinished:owner": BulkKeys.unfinished_of(name),
        "stored": BulkKeys.stored(name),
        "file": BulkKeys.file(name),
        "files": BulkKeys.files(name),
        "batch": BulkKeys.batch(name),
        "batches": BulkKeys.batches(name),
        "ended": BulkKeys.ended(name),
        "failed": BulkKeys.failed(name),
        "checkpoint": BulkKeys.checkpoint(name),
        "webhooks": BulkKeys.WEBHOOKS,
        "webhook_jobs": BulkKeys.webhook_jobs(name),
        "webhook_batches": BulkKeys.WEBHOOK_BATCHES,
        "webhook_due": BulkKeys.webhook_due(name),
        "webhook_events": BulkKeys.webhook_events(name),
        "webhook_failures": BulkKeys.webhook_failures(name),
        "webhook_dead": BulkKeys.webhook_dead(name),
    }


def _pattern(partition: Partition, kind: str) -> str:
    own = {
        "queues": QUEUES,
        "keys": KEYS,
        "seal": _SEAL,
        "limit": f"{_LIMITS}*",
        "history": f"{_HISTORY}*",
        "conversation": f"{_CONVERSATIONS}*",
        **_bulk_keys("*"),
    }
    if kind in own:
        return own[kind]
    ones = ("load", "model", "workers", "dead", "reader", "running", "reclaim")
    one_of_a_kind = kind in ones or ":" in kind
    return partition.load.removesuffix("load") + kind + ("" if one_of_a_kind else ":*")


def _may(server: redis.Redis, name: str, key: str) -> bool:
    try:
        if name.endswith("subscribe"):
            _listen(server, name, key)
        else:
            server.execute_command(*_words(name, key))
    except NoPermissionError:
        return False
    except ResponseError:
        return True  # refused for what it says, which means that it may be said
    return True


def _words(name: str, key: str) -> list[str]:
    # In one word, as the client library knows them: XGROUP CREATE, SCRIPT LOAD.
    command = name.upper().replace("|", " ")
    return [command, *(key if word == "{}" else word for word in _HARMLESS[name])]


def _listen(server: redis.Redis, name: str, channel: str) -> None:
    listener = server.pubsub()
    try:
        if name == "ssubscribe":
            listener.ssubscribe(channel)
        else:
            listener.subscribe(channel)
        listener.get_message(timeout=server.get_connection_kwargs()["socket_timeout"])
    finally:
        listener.close()
