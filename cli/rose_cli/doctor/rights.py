"""Which rights a Redis user lacks, tried without leaving a trace.

Redis looks at the rights before it looks at the arguments. So every command is sent in a form that
changes nothing: to a key that does not exist, or with an argument that is refused. What comes
back is NOPERM, or it may be done. The same rights as in deploy/redis/users.acl: a test compares.
"""

from __future__ import annotations

import secrets
from enum import StrEnum

import redis
from redis.exceptions import NoPermissionError, ResponseError

from rose.protocol import Partition


class Role(StrEnum):
    PRODUCER = "producer"
    WORKER = "worker"


#: Commands by the kind of key that they are for.
RIGHTS: dict[Role, dict[str, tuple[str, ...]]] = {
    Role.PRODUCER: {
        "": ("script|load", "time"),
        "jobs": ("eval", "evalsha", "xadd", "xlen", "xpending", "xinfo|consumers"),
        "state": ("hmget", "hset", "del"),
        "tokens": ("xadd", "xrange", "del"),
        "idempotency": ("get", "set"),
        "load": ("hmget", "hincrby"),
        "model": ("hmget",),
        "dead": ("xlen",),
        "channel": ("subscribe", "publish"),
        "control": ("publish",),
    },
    Role.WORKER: {
        "": ("script|load", "time"),
        "jobs": (
            *("eval", "evalsha", "exists", "xlen", "xpending", "xrange", "xread", "xreadgroup"),
            *("xgroup|create", "xgroup|delconsumer", "xinfo|groups", "xinfo|consumers"),
            *("xautoclaim", "xclaim", "xack", "xdel", "del"),
        ),
        "state": ("hmget", "hset", "hincrby", "hdel", "expire", "persist"),
        "tokens": ("xadd", "xrange", "xrevrange", "expire", "del"),
        "idempotency": ("get", "expire"),
        "load": ("hmget", "hincrby"),
        "model": ("hmget", "hset"),
        "dead": ("xadd", "xtrim", "xlen", "expire"),
        "reader": ("get", "set", "pttl", "pexpire"),
        "running": ("zadd", "zrem", "zrangebyscore"),
        "reclaim": ("get", "set"),
        "idle": ("get", "set", "pttl", "exists", "del", "zadd", "bzpopmin"),
        "channel": ("publish",),
        "control": ("subscribe",),
    },
}

#: What follows the command, {} being the key: nothing here changes anything.
_HARMLESS = {
    "bzpopmin": ("{}", "never"),
    "del": ("{}",),
    "eval": ("return 1", "1", "{}"),
    "evalsha": ("0" * 40, "1", "{}"),
    "exists": ("{}",),
    "expire": ("{}", "never"),
    "get": ("{}",),
    "hdel": ("{}", "field"),
    "hincrby": ("{}", "field", "some"),
    "hmget": ("{}", "field"),
    "hset": ("{}", "field", "value", "odd"),
    "persist": ("{}",),
    "pexpire": ("{}", "never"),
    "pttl": ("{}",),
    "publish": ("{}", "doctor"),
    "script|load": ("return 1",),
    "set": ("{}", "value", "wrong"),
    "spublish": ("{}", "doctor"),
    "time": (),
    "xack": ("{}", "group", "0-1"),
    "xadd": ("{}", "NOMKSTREAM", "*", "odd"),
    "xautoclaim": ("{}", "group", "doctor", "0", "0-0"),
    "xclaim": ("{}", "group", "doctor", "0", "0-1"),
    "xdel": ("{}", "0-1"),
    "xgroup|create": ("{}", "group", "0"),
    "xgroup|delconsumer": ("{}", "group", "doctor"),
    "xinfo|consumers": ("{}", "group"),
    "xinfo|groups": ("{}",),
    "xlen": ("{}",),
    "xpending": ("{}", "group"),
    "xrange": ("{}", "-", "+", "COUNT", "0"),
    "xread": ("COUNT", "1", "STREAMS", "{}", "$"),
    "xreadgroup": ("GROUP", "group", "doctor", "COUNT", "1", "STREAMS", "{}", ">"),
    "xrevrange": ("{}", "+", "-", "COUNT", "0"),
    "xtrim": ("{}", "MAXLEN", "some"),
    "zadd": ("{}", "some", "job"),
    "zrangebyscore": ("{}", "1", "0"),
    "zrem": ("{}", "job"),
}


def missing(server: redis.Redis, partition: Partition, role: Role, *, sharded: bool) -> list[str]:
    """What its user may not do of what `role` has to, such as `XADD on rose:{default:0}:jobs:*`.

    Raises: RedisError: it cannot be asked.
    """
    user = server.get_connection_kwargs().get("username") or ""
    keys = _keys(partition, user)
    lacks = []
    for kind, names in RIGHTS[role].items():
        for name in names:
            # A cluster's messages go to the subscribers of one shard.
            word = f"s{name}" if sharded and name in ("subscribe", "publish") else name
            if not _may(server, word, keys[kind]):
                where = f" on {_pattern(partition, kind)}" if kind else ""
                lacks.append(word.upper().replace("|", " ") + where)
    return lacks


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
        "dead": partition.dead,
        "reader": partition.reader,
        "running": partition.running,
        "reclaim": partition.reclaim,
        "idle": partition.state(nobody).replace(":state:", ":idle:"),
        "channel": partition.channel(nobody),
        "control": partition.control,
    }


def _pattern(partition: Partition, kind: str) -> str:
    one_of_a_kind = kind in ("load", "model", "dead", "reader", "running", "reclaim", "control")
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
