"""Worker processes, started as a user would: `rose worker`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rose_cli.demo.broker import free_port
from rose_cli.demo.processes import ServiceProcess
from rose_cli.top.frames import scrape

#: A worker that lives answers, if late on a busy machine; one that is dead refuses at once.
_SCRAPE_S = 30.0


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
