"""How the demo looks: live on a terminal, plain lines elsewhere, and the final table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rose_cli.demo.state import DemoState, StreamRecord, WorkerView
from rose_producer import Result

_BAR = 12
_TAIL = 70
_SENTENCE = re.compile(r"""[.!?]["']?\s""")


class View:
    """Shows nothing: what --json wants, and what the others build on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def note(self, line: str) -> None:
        """Something happened."""

    def refresh(self, state: DemoState) -> None:
        """Time has passed."""


class LiveView(View):
    """All streams at once, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=12, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, line: str) -> None:
        self._console.print(Text(line, style="bold"))

    def refresh(self, state: DemoState) -> None:
        self._live.update(draw(state))


def draw(state: DemoState) -> RenderableType:
    """All streams as they stand."""
    return Group(_header(state), _streams(state))


class PlainView(View):
    """A line per sentence, and one per second for the whole."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[int, int] = {}
        self._second = -1

    def note(self, line: str) -> None:
        self._print(line)

    def refresh(self, state: DemoState) -> None:
        for record in state.records:
            self._show_sentences(record)
        if int(state.elapsed_s) > self._second:
            self._second = int(state.elapsed_s)
            self._print(_header(state).plain)

    def _show_sentences(self, record: StreamRecord) -> None:
        start = self._shown.get(record.number, 0)
        ends = [match.end() for match in _SENTENCE.finditer(record.text, start)]
        end = len(record.text) if record.ended else max(ends, default=start)
        if end > start:
            said = " ".join(record.text[start:end].split())
            opening = f"{record.title} | " if start == 0 else ""
            self._print(f"  [{record.number:2d} {_worker_now(record)}] {opening}{said}")
            self._shown[record.number] = end

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _header(state: DemoState) -> Text:
    line = Text(f"{state.elapsed_s:5.1f} s  {state.tokens_per_s:4.0f} tokens/s  ")
    for worker in state.workers:
        line.append(_occupancy(worker))
    line.append(state.phase, style="bold")
    return line


def _occupancy(worker: WorkerView) -> Text:
    if not worker.alive:
        return Text(f"{worker.name} killed  ", style="red")
    filled = round(_BAR * worker.batch / worker.capacity) if worker.capacity else 0
    bar = "█" * filled + "░" * (_BAR - filled)
    return Text(f"{worker.name} {bar} {worker.batch}/{worker.capacity}  ", style="green")


def _streams(state: DemoState) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("text", no_wrap=True, overflow="crop")
    alive = {worker.name for worker in state.workers if worker.alive}
    for record in state.records:
        text = " ".join((record.title + "|" + record.text).split())
        table.add_row(
            str(record.number),
            _worker_cell(record, alive),
            str(len(record.indexes)),
            Text(text[-_TAIL:], style="dim" if record.ended else ""),
        )
    return table


def _worker_cell(record: StreamRecord, alive: set[str]) -> Text:
    if not record.workers:
        return Text("waits", style="dim")
    if record.ended:
        return Text("done", style="dim")
    if record.workers[-1] not in alive:
        return Text("orphaned", style="red")
    style = "yellow" if len(record.workers) > 1 else "green"
    return Text(record.workers[-1], style=style)


def _worker_now(record: StreamRecord) -> str:
    return record.workers[-1] if record.workers else "?"


def result_table(records: Sequence[StreamRecord], undisturbed: Sequence[Result]) -> Table:
    table = Table(
        title="every stream, as its subscriber saw it, compared with an undisturbed run",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("#", justify="right", min_width=2)
    table.add_column("prompt", no_wrap=True, overflow="ellipsis", max_width=18)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    table.add_column("missing", justify="right", no_wrap=True)
    table.add_column("doubled", justify="right", no_wrap=True)
    table.add_column("compared", no_wrap=True)
    for record, result in zip(records, undisturbed, strict=True):
        right = record.is_right(result)
        table.add_row(
            str(record.number),
            Text(record.title),
            str(len(record.indexes)),
            _path(record),
            str(record.missing),
            str(record.doubled),
            Text("same" if record.equals(result) else "DIFFERS", "green" if right else "red"),
        )
    return table


def _path(record: StreamRecord) -> str:
    path = " → ".join(name.removeprefix("worker-") for name in record.workers)
    return path if record.moved_at is None else f"{path} at {record.moved_at}"
