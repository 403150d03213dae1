"""Tables that fit the terminal. Loads rich, which takes a while: only for commands that draw.

A terminal of 80 columns comes first. No header and no number is ever cut: one column of a table may
give way (a name is shortened in its middle, a text wraps), and those marked `spare` are left out
where there is no room for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rose_cli.console import Console
from rose_cli.output import print_text

#: Looks up sys.stdout at each call.
console = Console(highlight=False)

_GAP = 2
_BAR = 14
#: What the column that gives way keeps at least, and before a spare column is shown.
_MIN_FLEXIBLE, _GOOD_FLEXIBLE = 12, 32
#: Where there is no terminal, nothing is shortened: a program or a pager reads it.
_UNLIMITED = 10_000

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    header: str
    cells: Sequence[Cell]
    right: bool = False
    spare: bool = False
    """left out where it does not fit; of several the last one first"""
    fit: Callable[[str, int], str] | None = None
    """shortens a cell to a width; only one column of a table has it"""

    @property
    def width(self) -> int:
        lines = [line for cell in self.cells for line in str(cell).split("\n")]
        return max(cell_len(line) for line in (self.header, *lines))


# How a cell of a column gives way.


def elide_start(text: str, width: int) -> str:
    """Its end: the newest of a text that grows."""
    return text if cell_len(text) <= width else "…" + _last_cells(text, width - 1)


def elide_middle(name: str, width: int) -> str:
    """Both ends of a name: names of the same kind often differ only at the end."""
    if cell_len(name) <= width:
        return name
    last = (width - 1) // 2
    return set_cell_size(name, width - 1 - last) + "…" + _last_cells(name, last)


def elide_end(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def wrap(text: str, width: int) -> str:
    """All of it, on as many lines as it takes."""
    return "\n".join(line.plain.rstrip() for line in Text(text).wrap(console, width))


def _last_cells(text: str, width: int) -> str:
    return set_cell_size(text[::-1], width)[::-1]


def bar(share: float) -> Text:
    filled = round(_BAR * min(1.0, share))
    return Text("█" * filled, style="green").append("░" * (_BAR - filled), style="dim")


def terminal_width() -> int:
    return console.width if console.is_terminal else _UNLIMITED


def print_drawing(drawing: RenderableType) -> None:
    """As wide as the terminal; as wide as it needs to be where there is none."""
    if console.is_terminal:
        console.print(drawing)
        return
    unlimited = Console(highlight=False, width=_UNLIMITED)
    with unlimited.capture() as capture:
        unlimited.print(drawing)
    print_text("\n".join(line.rstrip() for line in capture.get().splitlines()))


def make_table(columns: Sequence[Column], width: int) -> Table:
    """A table of at most `width`, of as many of the columns as fit."""
    shown = list(columns)
    while _good_width(shown) > width and (spare := [c for c in shown if c.spare]):
        shown.remove(spare[-1])
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    shown = [_fitted(column, shown, width) for column in shown]
    for column in shown:
        table.add_column(
            column.header,
            justify="right" if column.right else "left",
            no_wrap=True,
            width=column.width,
        )
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """A name and a value on each line; a long value wraps beside its name."""
    table = Table(show_header=False, box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    return table


def _good_width(columns: Sequence[Column]) -> int:
    flexible = [column.width for column in columns if column.fit is not None]
    return _width_without_flexible(columns) + min(_GOOD_FLEXIBLE, sum(flexible))


def _width_without_flexible(columns: Sequence[Column]) -> int:
    fixed = sum(column.width for column in columns if column.fit is None)
    return fixed + _GAP * (len(columns) - 1)


def _fitted(column: Column, shown: Sequence[Column], width: int) -> Column:
    if column.fit is None:
        return column
    room = max(_MIN_FLEXIBLE, width - _width_without_flexible(shown))
    cells = [
        Text(column.fit(str(cell), room), cell.style if isinstance(cell, Text) else "")
        for cell in column.cells
    ]
    return replace(column, cells=cells)
