"""Workers and gateways as child processes, started as a user would."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar, Self

from rose.errors import RoseError
from rose_cli.local.broker import free_port
from rose_cli.local.children import kill
from rose_cli.top.frames import scrape

_STOP_S = 120
_POLL_S = 0.05
#: Whoever waits hears something as often as this.
_SILENCE_S = 5.0
#: A worker that lives answers, if late on a busy machine; one that is dead refuses at once.
_SCRAPE_S = 30.0


def leave_at_signals() -> None:
    """A closed terminal ends this process too, and with it those that it has started."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, _: sys.exit(128 + number))


def _unheard(line: str) -> None:
    """Nobody waits for it."""


class ServiceDied(RoseError):
    code = "service_died"


class ServiceProcess:
    """One process that serves HTTP on loopback. Leaving the context kills it if it still runs."""

    kind: ClassVar[str] = "process"

    def __init__(
        self,
        name: str,
        http_port: int,
        program: Sequence[str],
        settings: Mapping[str, str | float],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`program`: a module, and its arguments before the settings, which have underscores for
        dashes. `environment`: all of it; this process's own if not given."""
        self.name = name
        self.http_port = http_port
        flags = [_flag(key.replace("_", "-"), value) for key, value in settings.items()]
        self._command = [sys.executable, "-m", *program, *flags]
        self._environment = environment
        self._folder = tempfile.TemporaryDirectory(prefix=f"rose-{self.kind}-")
        self._log = Path(self._folder.name, "log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                self._command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """None before the start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None before the end; that of a signal is negative."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_ready(self, say: Callable[[str], None] = _unheard) -> None:
        """As long as it lives: a worker may have to compile the decoder, or load a large model.

        `say` is told what it has logged last, as often as that changes, or else every few seconds
        how long it takes. Raises: ServiceDied: it ended.
        """
        began = told = time.monotonic()
        said = ""
        while not self.is_ready():
            *_, message = self.log.strip().rpartition("\n")[2].partition(": ")
            now = time.monotonic()
            if message and message != said:
                say(f"  {self.name}: {message}")
                said, told = message, now
            elif now - told >= _SILENCE_S:
                say(f"  {self.name}: not ready after {now - began:.0f} s ...")
                told = now
            time.sleep(_POLL_S)

    def is_ready(self) -> bool:
        """Raises: ServiceDied: it ended."""
        if not self.running:
            raise ServiceDied(f"{self.kind} {self.name} ended: {self.log[-500:].strip()}")
        return self.http("/readyz") is not None

    def signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL: no good-bye."""
        if self._process is not None:
            kill(self._process)

    def terminate(self) -> int:
        """SIGTERM, and its exit status."""
        if self._process is None:
            raise ServiceDied(f"{self.kind} {self.name} was never started")
        self._process.terminate()
        return self._process.wait(_STOP_S)

    def http(self, path: str, timeout_s: float = 30) -> str | None:
        """The page, or None when there is no good answer."""
        # Not by urllib: it asks the proxy that the environment names, which has other loopbacks.
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        except (OSError, HTTPException):  # the worker may be killed in the middle of the page
            return None
        finally:
            connection.close()
        return body if answer.status == HTTPStatus.OK else None


class WorkerProcess(ServiceProcess):
    """One `rose worker`. Leaving the context kills it if it still runs."""

    kind = "worker"

    def __init__(
        self,
        name: str,
        redis_url: str,
        *,
        program: Sequence[str] = ("rose_cli", "worker"),
        environment: Mapping[str, str] | None = None,
        **settings: str | float,
    ) -> None:
        """`settings` as in worker.settings, underscores for dashes. `program`: a module, and its
        arguments before the settings. `environment`: all of it; this process's own if not given."""
        port = free_port()
        given = {"name": name, "redis_url": redis_url, "http_port": port, **settings}
        super().__init__(name, port, program, given, environment)

    def metrics(self) -> dict[str, float]:
        return read_metrics(self.http_port)


@contextmanager
def two_workers(redis_url: str, **settings: Any) -> Iterator[list[WorkerProcess]]:
    """Both with `settings`, on one thread each; they start at the same time."""
    with ExitStack() as stack:
        workers = [
            WorkerProcess(name, redis_url, torch_threads=1, **settings)
            for name in ("worker-a", "worker-b")
        ]
        yield [stack.enter_context(worker) for worker in workers]


def read_metrics(http_port: int) -> dict[str, float]:
    """Samples by name, added up over their labels; empty when the worker is dead."""
    sample = scrape(("127.0.0.1", http_port), _SCRAPE_S)
    return sample.samples if sample else {}


class GatewayProcess(ServiceProcess):
    """One `rose gateway` on loopback. Leaving the context kills it if it still runs."""

    kind = "gateway"

    def __init__(self, name: str, redis_url: str, **settings: str | float) -> None:
        """`settings` as in rose_gateway.settings. What it keeps of files goes with it, if `storage`
        is not given."""
        port = free_port()
        given = {"redis_url": redis_url, "port": port, **settings}
        super().__init__(name, port, ("rose_cli", "gateway"), given)
        if "storage" not in settings:
            self._command.append(f"--storage={self._folder.name}/files")

    @property
    def url(self) -> str:
        """The base URL for OpenAI's SDKs."""
        return f"http://127.0.0.1:{self.http_port}/v1"


def _flag(name: str, value: str | float | bool) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"
