"""A broker of one's own: a real redis-server where there is one, else fakeredis.

Used by the demo, the benchmarks and the tests, so that each can start, kill and throw away its own.
"""

import contextlib
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rose.errors import BrokerUnavailable
from rose.installation import how_to_install
from rose_cli.local.children import kill

_log = logging.getLogger(__name__)

#: In the environment: the server to use, of any version, in place of the first good one on PATH.
REDIS_SERVER = "REDIS_SERVER"
_PROGRAMS = ("redis-server", "valkey-server")

#: Scripts run on 6.2. But there Redis may refuse one for want of memory in its middle, and clients
#: cannot tell errors that scripts raise apart, so they would not wait. The users need 7.0, too.
_OLDEST = (7, 0)
TOO_OLD = "it must be 7.0 or newer"

_START_S = 60.0

#: What the delivery guarantee asks of any Redis: docs/protocol.md.
_DURABLE = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": "",
}


class EmbeddedBroker:
    """A Redis for this process, on a free loopback port; durable across `restart`.

    `fake=None` takes a real server where `find_redis_server` finds one. fakeredis keeps nothing
    across a restart.

    For a real one: `config` is a redis.conf to start from, `options` come over it. `url` says how
    to reach it where they ask for TLS or users. `{port}` stands for its port in both.
    """

    def __init__(
        self,
        *,
        fake: bool | None = None,
        config: Path | None = None,
        options: Mapping[str, str] | None = None,
        url: str = "redis://127.0.0.1:{port}/0",
    ) -> None:
        self._server = None if fake else find_redis_server()
        if self._server is None and fake is False:
            raise BrokerUnavailable(f"there is no redis-server on PATH ({TOO_OLD}): install it")
        if self._server is None and find_spec("fakeredis") is None:
            raise BrokerUnavailable(
                f"there is neither a redis-server on PATH ({TOO_OLD}) nor fakeredis: install one "
                f"of them ({how_to_install('demo')})"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="rose-redis-")
        self.port = free_port()
        self.url = url.format(port=self.port)
        self._config = config
        self._options = options or {}
        self._process: subprocess.Popen[bytes] | None = None
        # Kept as long as this is: its pool has a finalizer, and what a signal raises while the
        # garbage collector runs that is lost.
        self._client = redis.Redis.from_url(self.url, socket_timeout=1, retry=Retry(NoBackoff(), 0))

    @property
    def kind(self) -> str:
        """The program's name."""
        return Path(self._server).name if self._server else "fakeredis"

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BrokerUnavailable:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> None:
        """Raises: BrokerUnavailable: it did not come up."""
        log = Path(self._folder.name, "log")
        self._process = self.begin(self._command(), log)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                if self._client.ping():
                    self._client.close()
                    return
            time.sleep(0.02)
        self.stop()
        raise BrokerUnavailable(f"{self.kind} did not start: {log.read_text()[-500:].strip()}")

    def begin(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Its process, which writes into this log."""
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - our own arguments
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """End it without a word to anybody, as a crash would."""
        if self._process is not None:
            kill(self._process)
            self._process = None

    def _command(self) -> list[str]:
        if self._server is None:
            return [sys.executable, "-m", "rose_producer.testing.fake_redis", str(self.port)]
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": self._folder.name}
        if self._config is None:
            options |= _DURABLE
        options |= {name: value.format(port=self.port) for name, value in self._options.items()}
        start = [self._server, *([str(self._config)] if self._config else [])]
        return [*start, *(word for name, v in options.items() for word in (f"--{name}", v))]


def find_redis_server() -> str | None:
    """What REDIS_SERVER names, else the first on PATH that is new enough: Redis, then Valkey.

    Says which ones it passes over.

    Raises:
        BrokerUnavailable: REDIS_SERVER names no program.
    """
    if named := os.environ.get(REDIS_SERVER):
        if (program := shutil.which(named)) is None:
            raise BrokerUnavailable(f"{REDIS_SERVER}={named} is no program that can be run")
        return program
    for name in _PROGRAMS:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            program = shutil.which(name, path=folder) if folder else None
            if program is not None and _is_new_enough(program):
                return program
    return None


def version_of(program: str) -> str | None:
    """As `8.0.2`, or `8.1.1 (Valkey)`. None where it cannot be read."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    match = re.match(r"(\w+) server v=([\d.]+)", answer.stdout)
    if match is None:
        return None
    return match[2] if match[1] == "Redis" else f"{match[2]} ({match[1]})"


@cache
def _is_new_enough(program: str) -> bool:
    """One whose version cannot be read is tried."""
    version = version_of(program)
    if version is None or not is_too_old(version):
        return True
    _log.warning("passing over %s: version %s is too old, %s", program, version, TOO_OLD)
    return False


def is_too_old(version: str) -> bool | None:
    """None where it cannot be read."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2])) < _OLDEST


def free_port() -> int:
    """A port that nobody listens on now, and that is given to nobody else for a minute.

    A connection was just closed there, so the kernel keeps the port from whoever asks for any; a
    server that asks for it by number, with SO_REUSEADDR as servers do, gets it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # first: who closes first remembers the port
            client.recv(1)
        return port
