"""How far a run has come, on stderr: a bar on a terminal, else a line now and then."""

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rose_gateway.batches.run import Checkpoint

#: Between two lines where there is no terminal.
_LINE_S = 10.0


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def show(self, done: Checkpoint, trouble: str) -> None:
        """`trouble`: why lines wait; "" if they do not."""


def make_view(total: int, begun: Checkpoint) -> View:
    """`begun`: where this process has begun."""
    console = Console(stderr=True, highlight=False)
    return BarView(console, total, begun) if console.is_terminal else LineView(console, total)


class BarView:
    def __init__(self, console: Console, total: int, begun: Checkpoint) -> None:
        self._begun_lines, self._began_at = begun.lines, time.monotonic()
        self._progress = Progress(
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[notes]}"),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task(
            "", total=total, completed=begun.lines, rate="", notes=""
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: Checkpoint, trouble: str) -> None:
        passed_s = max(1e-3, time.monotonic() - self._began_at)
        rate = (done.lines - self._begun_lines) / passed_s
        failed = f"{done.failed:,} failed" if done.failed else ""
        notes = ", ".join(note for note in (failed, trouble) if note)
        self._progress.update(
            self._task, completed=done.lines, rate=f"{rate:,.0f}/s", notes=f"[red]{notes}[/red]"
        )


class LineView:
    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, done: Checkpoint, trouble: str) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _LINE_S:
            self._shown_at = now
            line = f"{done.lines:,} of {self._total:,} lines, {done.failed:,} failed"
            self._console.print(f"{line}: {trouble}" if trouble else line, soft_wrap=True)
