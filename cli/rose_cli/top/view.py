"""How a frame of `rose top` looks, on a terminal and as a picture: 80 columns, 24 lines first."""

import io
import re
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from rose_cli.tables import Column, bar, elide_middle, make_table
from rose_cli.top.frames import Frame, GatewayRow, TenantRow, WorkerRow

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 40
_PICTURE_WIDTH = 92
#: Lines of a frame beside those of its summary and of its workers.
_OTHER_LINES = 6

#: Tenants beyond these are counted and not shown, where a terminal has so few lines.
_FEW_TENANTS = 5

#: Above these a share is coloured.
_BUSY, _FULL = 0.6, 0.9


def draw(frame: Frame, width: int, height: int | None = None) -> RenderableType:
    """`height`: workers and tenants beyond it are counted and not shown."""
    summary = _summary(frame)
    tenants, lines = _tenants(frame, width, few=height is not None)
    room = None if height is None else height - len(summary) - lines - _OTHER_LINES
    return Group(
        _title(frame, width),
        Text(),
        *summary,
        Text(),
        *tenants,
        *_workers(frame.workers, width, room),
        *_hints(frame),
    )


def export(frame: Frame) -> str:
    """An SVG."""
    console = Console(record=True, width=_PICTURE_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(draw(frame, _PICTURE_WIDTH))
    return picture(console, "rose top")


def picture(console: Console, title: str) -> str:
    """What `console` has recorded, as an SVG that loads no fonts from elsewhere."""
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    fonts = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
    svg = re.sub(r"font-family: Fira Code, monospace", f"font-family: {fonts}", svg)
    # Not every viewer keeps the spaces of a column otherwise.
    return svg.replace("<text ", '<text xml:space="preserve" ')


def _title(frame: Frame, width: int) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(frame.at))
    room = max(20, width - len(f"rose top  queue   model   {clock}"))
    queue = elide_middle(frame.queue, room // 2)
    return Text.assemble(
        ("rose top", "bold"),
        ("  queue ", "dim"),
        queue,
        ("  model ", "dim"),
        elide_middle(frame.model or "-", room - len(queue)),
        (f"  {clock}", "dim"),
    )


def _summary(frame: Frame) -> list[Text]:
    batch = sum(row.batch for row in frame.workers)
    slots = sum(row.capacity for row in frame.workers)
    priorities = "  ".join(f"{name} {count}" for name, count in frame.waiting.items())
    dead = "bold red" if frame.dead_letters else ""
    facts = [
        _fact(
            "tokens/s",
            Text(f"{frame.tokens_per_s:,.0f}", style="bold"),
            Text(spark(frame.history[-_SPARKS:]), style="cyan"),
        ),
        _fact("slots", Text(f"{batch} of {slots}"), bar(batch / slots if slots else 0)),
        _fact(
            "waiting",
            Text.assemble((str(sum(frame.waiting.values())), "bold"), _age(frame.oldest_waiting_s)),
            Text(priorities),
        ),
        _fact("running", Text.assemble((str(frame.running), "bold"), _age(frame.oldest_running_s))),
        _fact("dead letters", Text(str(frame.dead_letters), style=dead)),
    ]
    facts += _placement(frame.workers)
    return facts if not frame.gateways else [*facts, _gateways(frame.gateways)]


def _placement(rows: Sequence[WorkerRow]) -> list[Text]:
    """A line, where jobs are placed or handed back."""
    hits, misses = sum(row.hits for row in rows), sum(row.misses for row in rows)
    waited, handed_back = sum(row.waited for row in rows), sum(row.handed_back for row in rows)
    if not (hits or misses or waited or handed_back):
        return []
    found = Text.assemble((f"{hits:,}", "bold"), (f" hits  {misses:,} misses", "dim"))
    return [_fact("placement", found, Text(f"{waited:,} waited  {handed_back:,} handed back"))]


def _gateways(rows: Sequence[GatewayRow]) -> Text:
    """One line for all."""
    streams = sum(row.open_streams for row in rows)
    limits = sum(row.limits_hit for row in rows)
    requests = sum(row.requests_per_s for row in rows)
    events = sum(row.events_per_s for row in rows)
    hit = f"  {limits:,} limits hit" if limits else ""
    return _fact(
        "gateways",
        Text.assemble((str(len(rows)), "bold"), (f"  {streams:,} streams", "dim")),
        Text(f"{requests:,.0f} requests/s  {events:,.0f} events/s{hit}"),
    )


def _fact(name: str, value: Text, more: Text | None = None) -> Text:
    line = Text(f"{name:<14}", style="dim").append_text(value)
    if more is not None:
        line.pad_right(max(2, 38 - line.cell_len))
        line.append_text(more)
    return line


def _tenants(frame: Frame, width: int, *, few: bool) -> tuple[list[RenderableType], int]:
    """And how many lines that takes: none where nobody is a tenant."""
    shown = frame.tenants[:_FEW_TENANTS] if few else frame.tenants
    if not shown:
        return [], 0
    table: list[RenderableType] = [make_table(_tenant_columns(shown), width)]
    if (more := frame.all_tenants - len(shown)) > 0:
        table.append(Text(f"and {more:,} more tenants with jobs", style="dim"))
    return [*table, Text()], len(shown) + len(table) + 1


def _tenant_columns(rows: Sequence[TenantRow]) -> list[Column]:
    return [
        Column("tenant", [row.name for row in rows], fit=elide_middle),
        Column("weight", [f"{row.weight:g}" for row in rows], True),
        Column("waiting", [f"{row.waiting:,}" for row in rows], True),
        Column("oldest", [_seconds(row.oldest_waiting_s) for row in rows], True),
        Column("running", [_running(row) for row in rows], True),
        Column("served", [f"{row.served_tokens:,}" for row in rows], True),
    ]


def _running(row: TenantRow) -> Text:
    """Coloured where it may have no more."""
    return Text(f"{row.running:,}", style="yellow" if row.limited else "")


def _workers(rows: Sequence[WorkerRow], width: int, lines: int | None) -> list[RenderableType]:
    if not rows:
        return [Text("this queue has no worker: start one with rose worker", style="yellow")]
    # The header takes a line, and so does what is said of those that are left out.
    shown = rows if lines is None or len(rows) < lines else rows[: max(1, lines - 2)]
    table: list[RenderableType] = [make_table(_columns(shown), width)]
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        rate = sum(row.tokens_per_s for row in rest)
        table.append(Text(f"and {len(rest)} more workers, {rate:,.0f} tokens/s", style="dim"))
    return table


def _hints(frame: Frame) -> list[Text]:
    lines = []
    if any(row.address is None for row in frame.workers):
        lines.append("silent: no metrics from there; name it with --metrics HOST:PORT")
    if frame.other_workers == 1:
        lines.append("1 worker answers that works on another queue or another Redis")
    elif frame.other_workers:
        lines.append(f"{frame.other_workers} workers answer that work on another queue or Redis")
    return [Text(line, style="dim") for line in lines]


def _columns(rows: Sequence[WorkerRow]) -> list[Column]:
    return [
        Column("worker", [row.name for row in rows], fit=elide_middle),
        Column("state", [_state(row) for row in rows]),
        Column("slots", [_if_it_answers(row, f"{row.batch}/{row.capacity}") for row in rows], True),
        Column("KV cache", [_kv_cache(row) for row in rows], True),
        Column("tokens/s", [_if_it_answers(row, f"{row.tokens_per_s:,.0f}") for row in rows], True),
        Column("leases", [str(row.leases) for row in rows], True),
        Column("cached", [_cached(row) for row in rows], True),
        Column("hits", [_placed(row) for row in rows], True, spare=True),
        Column("ended", [_if_it_answers(row, f"{row.jobs_ended:,}") for row in rows], True),
        Column("batch", [_batch(row) for row in rows], spare=True),
        Column("metrics", [row.address or "" for row in rows], spare=True),
    ]


def _state(row: WorkerRow) -> Text:
    if row.address is None:
        return Text("silent", style="red")
    return Text(row.device, style="green") if row.ready else Text("no Redis", style="red")


def _if_it_answers(row: WorkerRow, text: str) -> str:
    return "" if row.address is None else text


def _kv_cache(row: WorkerRow) -> Text:
    return Text(_if_it_answers(row, f"{row.kv_usage:.0%}"), style=_colour(row.kv_usage))


def _cached(row: WorkerRow) -> str:
    return "" if row.cached is None else f"{row.cached:.0%}"


def _placed(row: WorkerRow) -> str:
    return f"{row.hits:,}/{row.hits + row.misses:,}" if row.hits or row.misses else ""


def _batch(row: WorkerRow) -> Text:
    return bar(row.batch / row.capacity) if row.capacity else Text()


def spark(values: Sequence[float]) -> str:
    """A bar each, the highest full."""
    highest = max(values, default=0.0)
    if not highest:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[round(value / highest * (len(_BLOCKS) - 1))] for value in values)


def _colour(share: float) -> str:
    return "red" if share > _FULL else "yellow" if share > _BUSY else "green"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f} s"


def _age(seconds: float | None) -> tuple[str, str]:
    return ("", "") if seconds is None else (f"  oldest {seconds:.1f} s", "dim")
