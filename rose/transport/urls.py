"""ROSE_REDIS_URL: one Redis, a Redis Cluster, or a Redis behind Sentinels.

    redis://user:password@host:6379/0            rediss:// (TLS), unix:// as well
    redis+cluster://host:7000,host:7001          rediss+cluster://
    redis+sentinel://host:26379,host:26379/service/0     rediss+sentinel://

User, password and `?options` are those of the Redis itself; Sentinels that want their own find
them in `?sentinel_username=` and `?sentinel_password=`. A URL may hold a password, so no message
quotes any of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any
from urllib.parse import unquote, urlsplit

from rose.errors import ConfigurationError
from rose.transport.redis_internals import read_url

_SENTINEL_PORT = 26379


class Kind(Enum):
    SINGLE = auto()
    CLUSTER = auto()
    SENTINEL = auto()


@dataclass(frozen=True, slots=True)
class Address:
    kind: Kind
    plain: str = field(repr=False)
    """a URL of the first node, as redis-py reads it"""
    nodes: tuple[tuple[str, int], ...] = ()
    """of a cluster: some of its nodes; else the Sentinels"""
    service: str = ""
    """what the Sentinels call the primary"""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """user, password, database, TLS and socket options, by redis-py's names"""
    sentinel: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """the same for the Sentinels"""


def parse_address(url: str) -> Address:
    """Raises: ConfigurationError: says what is wrong, and quotes nothing."""
    scheme, found, rest = url.partition("://")
    secure, _, kind = scheme.partition("+")
    try:
        if kind == "cluster" and secure in ("redis", "rediss"):
            return _cluster(secure, rest)
        if kind == "sentinel" and secure in ("redis", "rediss"):
            return _sentinel(secure, rest)
        if not found or scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError(
                "ROSE_REDIS_URL cannot be used: it must begin with redis://, rediss://, unix://, "
                "or redis+cluster:// or redis+sentinel:// (rediss+ for TLS)"
            )
        options = read_url(url)
        if scheme != "unix":
            _check_database(url)
        return Address(Kind.SINGLE, url, options=options)
    except ValueError:
        # Its message may hold a part of a password that has a '/' or a '#' in it.
        raise ConfigurationError(
            "ROSE_REDIS_URL cannot be used: a host, a port or an option in it cannot be read "
            "(write %-codes for / # ? @ : in a user or password)"
        ) from None


def _check_database(url: str) -> None:
    """redis-py takes database 0 where it cannot read a number. Raises: ConfigurationError"""
    database = urlsplit(url).path.removeprefix("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigurationError(
            "ROSE_REDIS_URL: what stands after the host is the number of a database, as in "
            "redis://host:6379/0"
        )


def _cluster(scheme: str, rest: str) -> Address:
    plain, nodes, path = _split(scheme, rest, default_port=6379)
    if path.strip("/") not in ("", "0"):
        raise ConfigurationError("ROSE_REDIS_URL: a cluster has no other database than 0")
    options = read_url(plain)
    options.pop("db", None)
    return Address(Kind.CLUSTER, plain, nodes, options=options)


def _sentinel(scheme: str, rest: str) -> Address:
    plain, nodes, path = _split(scheme, rest, default_port=_SENTINEL_PORT)
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ConfigurationError(
            "ROSE_REDIS_URL: name the service after the Sentinels, as in "
            "redis+sentinel://host:26379/service"
        )
    options = read_url(plain)
    options["db"] = int(database or 0)
    names = ("username", "password")
    own = {name: options.pop(f"sentinel_{name}", None) for name in names}
    tls = {name: value for name, value in options.items() if name.startswith("ssl")}
    sentinel = {name: value for name, value in own.items() if value} | tls
    return Address(Kind.SENTINEL, plain, nodes, unquote(service), options, sentinel)


def _split(
    scheme: str, rest: str, *, default_port: int
) -> tuple[str, tuple[tuple[str, int], ...], str]:
    """A plain URL of the first of several hosts, all (host, port), and the path."""
    # Several hosts are no host: since Python 3.13 `urlsplit` refuses an IPv6 address among them.
    where = re.split("[/?#]", rest, maxsplit=1)[0]
    parts = urlsplit(f"//host{rest[len(where) :]}")
    credentials, at, hosts = where.rpartition("@")
    nodes = tuple(_node(host, default_port) for host in hosts.split(","))
    query = f"?{parts.query}" if parts.query else ""
    first = hosts.split(",")[0]
    return f"{scheme}://{credentials}{at}{first}{query}", nodes, parts.path


def _node(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or default_port
