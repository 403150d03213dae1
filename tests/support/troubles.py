"""What can befall a Redis that is up, for as long as a `with` lasts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from rose_cli.demo.broker import free_port
from tests.support.proxy import Proxy


@contextmanager
def frozen(port: int) -> Iterator[None]:
    """It refuses nothing and says nothing: the kernel accepts connections for it."""
    with redis.Redis(port=port) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def out_of_memory(admin: redis.Redis) -> Iterator[None]:
    """Refuses whatever asks for memory."""
    admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        admin.config_set("maxmemory", 0)


@contextmanager
def read_only(admin: redis.Redis, *, serves_reads: bool = True) -> Iterator[None]:
    """A replica of nobody: READONLY, or MASTERDOWN where it serves no reads either."""
    admin.config_set("replica-serve-stale-data", "yes" if serves_reads else "no")
    admin.replicaof("127.0.0.1", str(free_port()))
    try:
        yield
    finally:
        admin.replicaof("NO", "ONE")


@contextmanager
def loading(*proxies: Proxy) -> Iterator[None]:
    """Answers as a server with a large AOF does after its start."""
    for proxy in proxies:
        proxy.answer = b"LOADING Redis is loading the dataset in memory"
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.answer = None
