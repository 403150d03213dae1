"""How the demo looks: live on a terminal, plain lines elsewhere, and the final table."""

import re
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rose_cli.demo.state import DemoState, StreamRecord, WorkerView
from rose_cli.tables import Column, bar, elide_end, elide_start, make_table
from rose_producer import Result

#: The widest cell of a stream that moved: `b → a at 199`.
_PATH = 12
_STATE = len("orphaned")
_ENDING = 32
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
        self._live.update(draw(state, self._console.width))


def draw(state: DemoState, width: int) -> RenderableType:
    """All streams as they stand: 20 lines, so that notes fit above them."""
    workers = [_worker_line(worker, state) for worker in state.workers]
    return Group(_summary(state), *workers, Text(), make_table(_stream_columns(state), width))


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
            workers = [_worker_line(worker, state).plain for worker in state.workers]
            self._print("; ".join([_summary(state).plain, *workers]))

    def _show_sentences(self, record: StreamRecord) -> None:
        start = self._shown.get(record.number, 0)
        ends = [match.end() for match in _SENTENCE.finditer(record.text, start)]
        end = len(record.text) if record.ended else max(ends, default=start)
        if end > start:
            text = " ".join(record.text[start:end].split())
            opening = f"{record.title} | " if start == 0 else ""
            worker = record.workers[-1] if record.workers else "?"
            self._print(f"  [{record.number:2d} {worker}] {opening}{text}")
            self._shown[record.number] = end

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _summary(state: DemoState) -> Text:
    rates = f"{state.elapsed_s:5.1f} s  {state.tokens_per_s:4.0f} tokens/s  "
    return Text(rates).append(state.phase, style="bold")


def _worker_line(worker: WorkerView, state: DemoState) -> Text:
    if worker.killed_at_s is not None:
        lost = f"killed at {worker.killed_at_s:.1f} s with {len(state.moved)} streams in hand"
        return Text(f"{worker.name}  {lost}", style="red")
    occupied = bar(worker.batch / worker.capacity if worker.capacity else 0)
    slots = f"  {worker.batch} of {worker.capacity} slots"
    return Text.assemble(f"{worker.name}  ", occupied, slots, style="green")


def _stream_columns(state: DemoState) -> list[Column]:
    alive = {worker.name for worker in state.workers if worker.alive}
    records = state.records
    texts = [" ".join((record.title + "|" + record.text).split()) for record in records]
    return [
        Column("#", [str(record.number) for record in records], right=True),
        # As wide as it will be: nothing jumps when a stream moves.
        Column("worker", [f"{_path(record):<{_PATH}}" for record in records]),
        Column("state", [_stream_state(record, alive) for record in records]),
        Column("tokens", [str(len(record.indexes)) for record in records], right=True),
        Column("text", texts, fit=elide_start),
    ]


def _stream_state(record: StreamRecord, alive: set[str]) -> Text:
    if record.ended:
        state, style = "done", "dim"
    elif not record.workers:
        state, style = "waiting", "dim"
    elif record.workers[-1] not in alive:
        state, style = "orphaned", "red"
    elif record.resumed:
        state, style = "resumed", "yellow"
    else:
        state, style = "running", "green"
    return Text(f"{state:<{_STATE}}", style)


def result_table(
    records: Sequence[StreamRecord], undisturbed: Sequence[Result], width: int
) -> Table:
    pairs = list(zip(records, undisturbed, strict=True))
    columns = [
        Column("#", [str(record.number) for record in records], right=True),
        Column("prompt", [record.title for record in records], fit=elide_end),
        Column("tokens", [str(len(record.indexes)) for record in records], right=True),
        Column("worker", [_path(record) for record in records]),
        Column("missing", [str(record.missing) for record in records], right=True),
        Column("doubled", [str(record.doubled) for record in records], right=True),
        Column("compared", [_comparison(record, result) for record, result in pairs]),
        Column("the text ends", [_ending(record) for record in records], spare=True),
    ]
    return make_table(columns, width)


def _comparison(record: StreamRecord, undisturbed: Result) -> Text:
    style = "green" if record.is_right(undisturbed) else "red"
    return Text("same" if record.equals(undisturbed) else "DIFFERS", style)


def _ending(record: StreamRecord) -> str:
    return elide_start(" ".join(record.text.split()), _ENDING)


def _path(record: StreamRecord) -> str:
    """Its workers in turn: `b → a at 41` went on at token 41."""
    path = " → ".join(name.removeprefix("worker-") for name in record.workers)
    return path if record.moved_at is None else f"{path} at {record.moved_at}"
