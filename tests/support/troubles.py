"""What can befall a Redis that is up, for as long as a `with` lasts."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import redis

from rose_cli.local.broker import free_port
from tests.support.bench import wait_until
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
def _one_for_zero(admin: redis.Redis, setting: str) -> Iterator[None]:
    """A setting that is 0 otherwise."""
    admin.config_set(setting, 1)
    try:
        yield
    finally:
        admin.config_set(setting, 0)


def out_of_memory(admin: redis.Redis) -> AbstractContextManager[None]:
    """Refuses whatever asks for memory."""
    return _one_for_zero(admin, "maxmemory")


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
def unable_to_save(admin: redis.Redis) -> Iterator[None]:
    """MISCONF: its snapshots cannot be written, as on a full disk. It takes no writes."""
    snapshot = Path(str(admin.config_get("dir")["dir"]), "dump.rdb")
    snapshot.mkdir()
    (snapshot / "in-the-way").touch()
    admin.config_set("save", "3600 1")
    admin.bgsave()
    wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
    try:
        yield
    finally:
        admin.config_set("save", "")
        shutil.rmtree(snapshot)


def without_replicas(admin: redis.Redis) -> AbstractContextManager[None]:
    """NOREPLICAS: it takes no writes that no replica would have."""
    return _one_for_zero(admin, "min-replicas-to-write")


@contextmanager
def busy(admin: redis.Redis) -> Iterator[None]:
    """A script of somebody's runs for ever."""
    admin.config_set("busy-reply-threshold", 50)

    def run() -> None:
        with suppress(redis.ResponseError), redis.Redis(**options) as somebody:
            somebody.eval("while true do end", 0)

    options = {"port": admin.connection_pool.connection_kwargs["port"], "protocol": 2}
    script = threading.Thread(target=run)
    script.start()
    wait_until(lambda: _is_busy(admin))
    try:
        yield
    finally:
        admin.script_kill()
        script.join()


def _is_busy(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


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
