"""The processes of a run, each in one life after another."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.chaos import journal
from tests.chaos.context import DRAIN_LIMIT_S, WORKERS, Context
from tests.chaos.nursery import Nursery
from tests.support.children import Child

_WATCH_S = 0.05
#: A drain over its limit is measured this much longer, then the process is killed.
_DRAIN_SLACK_S = 5.0


class End(StrEnum):
    """How a life ended."""

    KILLED = "killed by us"
    DRAINED = "drained"
    POISONED = "killed itself on poison"
    REFUSED = "could not start: Redis was away"
    ITSELF = "ended by itself"
    OVER = "the run was over"


@dataclass
class Life:
    """Times are Unix seconds."""

    process: str
    incarnation: int
    began: float
    ended: float | None = None
    end: End | None = None
    told_at: float | None = None
    """when it was told to drain"""
    stopped: list[tuple[float, float]] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def name(self) -> str:
        return f"{self.process}.{self.incarnation}"

    @property
    def drain_s(self) -> float | None:
        """None: it was not drained, or poison was faster."""
        if self.told_at is None or self.ended is None or self.end is End.POISONED:
            return None
        return self.ended - self.told_at


class ManagedProcess:
    """A producer, subscriber or worker. Whoever does something to it holds `lock`."""

    def __init__(
        self,
        role: str,
        index: int,
        context: Callable[[int], Context],
        folder: Path,
        nursery: Nursery,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: another than the harness's own, in which no nursery can help."""
        self.role = role
        self.name = f"{role}-{index}"
        self.lock = asyncio.Lock()
        self.lives: list[Life] = []
        self.log = folder / f"{self.name}.log"
        self._context = context
        self._folder = folder
        self._environment = environment
        self._nursery = nursery
        self._popen: subprocess.Popen[bytes] | Child | None = None
        self._served = 0
        """The number of the last life that is known to have served."""

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def blocking(self) -> bool:
        """Whether it has the blocking client."""
        return self._context(0).blocking

    @property
    def pid(self) -> int | None:
        """None: it has not begun. It may be dead."""
        return None if self._popen is None else self._popen.pid

    @property
    def up_s(self) -> float:
        """How long this life has lasted; 0 when it is over."""
        if self._popen is None or self._popen.poll() is not None:
            return 0.0
        return time.time() - self.life.began

    @property
    def serving(self) -> bool:
        """A worker: its engine loop runs. A gateway: it accepts. The others: from the start."""
        if self.role in ("producer", "subscriber", "crowd") or self._served == len(self.lives):
            return True
        if self._accepts() if self.role == "gateway" else "serving" in self._notes():
            self._served = len(self.lives)
        return self._served == len(self.lives)

    def start(self) -> None:
        context = self._context(len(self.lives)).model_dump_json()
        if self._environment is None:
            self._popen = self._nursery.fork(self.role, context, self.log)
        else:
            self._popen = self._spawn(context, self._environment)
        self.lives.append(Life(self.name, len(self.lives), time.time()))

    def _spawn(self, context: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"tests.chaos.{self.role}", context],
                stdin=subprocess.PIPE,  # the child ends when this closes
                stdout=log,
                stderr=log,
                env=environment,
            )

    def signal(self, signum: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(signum)

    def kill(self, end: End = End.KILLED) -> bool:
        """SIGKILL; False when it was dead already."""
        if self._popen is None or self._popen.poll() is not None:
            return False
        self._popen.kill()
        self._popen.wait()
        self._over(end)
        return True

    async def drain(self) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        if self._popen is None or self.notice_end():
            return
        began = self.life.told_at = time.time()
        self._popen.terminate()
        while self._popen.poll() is None and time.time() - began < DRAIN_LIMIT_S + _DRAIN_SLACK_S:
            await asyncio.sleep(_WATCH_S / 5)
        if not self.kill(End.ITSELF):
            self._over(End.POISONED if self._poisoned else End.DRAINED)

    def notice_end(self) -> bool:
        """Notice that it has ended by itself, and how."""
        if self._popen is None or self._popen.poll() is None or self.life.end is not None:
            return False
        if self._poisoned:
            end = End.POISONED
        elif self.role == "crowd" and self._popen.returncode == 0:
            end = End.OVER
        elif self.role == "worker" and not self.serving and self._popen.returncode == 1:
            end = End.REFUSED
        else:
            end = End.ITSELF
        self._over(end)
        return True

    @property
    def _poisoned(self) -> bool:
        if self._popen is None or self.role != "worker":
            return False
        if self._popen.returncode != -signal.SIGKILL:
            return False
        # Its other thread may have written one more entry.
        return "poisoned" in self._notes()[-2:]

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.1)  # the harness does not wait
            return probe.connect_ex(("127.0.0.1", self._context(0).http_port)) == 0

    def _notes(self) -> list[str]:
        return [what for _, (_, what, *_) in journal.read_file(self._journal)]

    @property
    def _journal(self) -> Path:
        """Of this life of a worker."""
        return self._folder / WORKERS / f"{self.life.name}.jsonl"

    def _over(self, end: End) -> None:
        life = self.life
        life.ended, life.end = time.time(), end
        if end is End.POISONED:  # it may be noticed late
            notes = journal.read_file(self._journal)
            life.ended = max(at for _, (at, what, *_) in notes if what == "poisoned")
        if self._popen is not None:
            life.exit_code = self._popen.returncode
            if isinstance(self._popen, subprocess.Popen) and self._popen.stdin is not None:
                self._popen.stdin.close()


async def watch(processes: list[ManagedProcess]) -> None:
    """Start again whoever has ended by itself."""
    while True:
        for process in processes:
            if not process.lock.locked() and process.notice_end():
                process.start()
        await asyncio.sleep(_WATCH_S)
