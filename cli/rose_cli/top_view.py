"""How a frame of `rose top` looks, on a terminal and as a picture."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rose_cli.top import Frame, WorkerRow

_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR = 14
_SPARKS = 40
_WIDTH = 92

#: Above these a share is coloured.
_BUSY, _FULL = 0.6, 0.9


def draw(frame: Frame) -> RenderableType:
    title = Text.assemble(
        ("rose top", "bold"),
        ("  queue ", "dim"),
        frame.queue,
        ("  model ", "dim"),
        frame.model or "-",
        (time.strftime("  %H:%M:%S", time.localtime(frame.at)), "dim"),
    )
    body = Group(_summary(frame), Text(), _workers(frame.workers))
    return Panel(body, title=title, title_align="left", box=box.ROUNDED, padding=(1, 2))


def export(frame: Frame, width: int = _WIDTH) -> str:
    """An SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(draw(frame))
    return picture(console, "rose top")


def picture(console: Console, title: str) -> str:
    """What `console` has recorded, as an SVG that loads no fonts from elsewhere."""
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    fonts = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {fonts}", svg)
    # Not every viewer keeps the spaces of a column otherwise.
    return svg.replace("<text ", '<text xml:space="preserve" ')


def _summary(frame: Frame) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, min_width=22)
    table.add_column(no_wrap=True)
    batch = sum(row.batch for row in frame.workers)
    slots = sum(row.capacity for row in frame.workers)
    table.add_row(
        "tokens/s",
        Text(f"{frame.tokens_per_s:,.0f}", style="bold"),
        Text(spark(frame.history[-_SPARKS:]), style="cyan"),
    )
    table.add_row("batch", f"{batch} of {slots} slots", bar(batch / slots if slots else 0))
    waiting = sum(frame.waiting.values())
    table.add_row(
        "waiting",
        Text.assemble((str(waiting), "bold"), _age(frame.oldest_waiting_s)),
        Text("  ".join(f"{name} {count}" for name, count in frame.waiting.items())),
    )
    table.add_row(
        "running", Text.assemble((str(frame.running), "bold"), _age(frame.oldest_running_s))
    )
    dead = Text(str(frame.dead_letters), style="bold red" if frame.dead_letters else "")
    table.add_row("dead letters", dead)
    return table


def _workers(rows: Sequence[WorkerRow]) -> RenderableType:
    if not rows:
        return Text("no worker answers: start one, or name them with --metrics", style="yellow")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("worker", no_wrap=True, overflow="ellipsis")
    table.add_column("", no_wrap=True)
    table.add_column("batch", no_wrap=True)
    for name in ("KV cache", "tokens/s", "leases", "ended"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row.address is None:
            silent = Text("silent", style="red")
            table.add_row(row.name, silent, "", "", "", str(row.leases), "")
            continue
        share = row.batch / row.capacity if row.capacity else 0.0
        table.add_row(
            row.name,
            Text(row.device, style="green") if row.ready else Text("no Redis", style="red"),
            Text.assemble(bar(share), f" {row.batch:>2}/{row.capacity}"),
            Text(f"{row.kv_usage:.0%}", style=_colour(row.kv_usage)),
            f"{row.tokens_per_s:,.0f}",
            str(row.leases),
            f"{row.jobs_ended:,}",
        )
    return table


def spark(values: Sequence[float]) -> str:
    """A bar each, the highest full."""
    most = max(values, default=0.0)
    if not most:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[round(value / most * (len(_BLOCKS) - 1))] for value in values)


def bar(share: float) -> Text:
    filled = round(_BAR * min(1.0, share))
    return Text("█" * filled, style="green").append("░" * (_BAR - filled), style="dim")


def _colour(share: float) -> str:
    return "red" if share > _FULL else "yellow" if share > _BUSY else "green"


def _age(seconds: float | None) -> tuple[str, str]:
    return ("", "") if seconds is None else (f"  oldest {seconds:.1f} s", "dim")
