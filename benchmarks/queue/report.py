"""The board as a table, as JSON, and as a page."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.queue.board import Board, Check, Row
from benchmarks.queue.plain import Plain

_COLUMNS = ["measured", "who", "median", "min", "max", f"to {Plain.name}"]


def environment(peers: Mapping[str, str]) -> dict[str, str | float]:
    """What the figures depend on. `peers`: versions by name."""
    server = subprocess.run(
        ["redis-server", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    return {
        "command": " ".join(["python -m benchmarks.queue", *map(_nameless, sys.argv[1:])]),
        "cores": os.cpu_count() or 0,
        "load before": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "redis-server": server[2].removeprefix("v="),
        "redis-py": version("redis"),
        "hiredis": _version("hiredis"),
        **peers,
    }


def show(board: Board, console: Console) -> None:
    table = Table(title=board.title, title_justify="left")
    for column in _COLUMNS:
        figures = column not in _COLUMNS[:2]
        table.add_column(column, justify="right" if figures else "left", no_wrap=True)
    for row in board.rows:
        table.add_row(*cells(board, row))
    console.print(table)
    for check in board.checks:
        console.print(f"{_verdict(check)}: {check.what}: {check.reached}; target {check.target}")
    for note in board.notes:
        console.print(note)


def as_page(facts: Mapping[str, Any], boards: Mapping[str, Board]) -> str:
    """Markdown: a table and its targets for each case."""
    about = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "command")
    parts = [f"`{facts['command']}`: {about}."]
    for board in boards.values():
        width = len(_COLUMNS)
        rows = [_COLUMNS, ["---"] * width, *(cells(board, row) for row in board.rows)]
        parts.append(f"## {board.title}")
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        if board.checks:
            rows = [["asked for", "target", "reached", ""], ["---"] * 4]
            rows += [[c.what, c.target, c.reached, _verdict(c)] for c in board.checks]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        parts += board.notes
    return "\n\n".join(parts) + "\n"


def cells(board: Board, row: Row) -> list[str]:
    metric, contender = row
    values = board.rows[row]
    plain = (metric, Plain.name)
    ratio = ""
    if plain in board.rows and contender != Plain.name:
        ratio = f"{statistics.median(board.ratios(row, plain)):.2f}"
    figures = (statistics.median(values), min(values), max(values))
    return [metric, contender, *(number(figure) for figure in figures), ratio]


def number(value: float) -> str:
    """Three digits or more, and never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def as_json(facts: Mapping[str, Any], boards: Mapping[str, Board]) -> dict[str, Any]:
    return {
        "environment": dict(facts),
        "cases": {name: _board_json(board) for name, board in boards.items()},
    }


def _board_json(board: Board) -> dict[str, Any]:
    return {
        "title": board.title,
        "rows": [
            {"metric": metric, "contender": contender, "rounds": values}
            for (metric, contender), values in board.rows.items()
        ],
        "checks": [asdict(check) for check in board.checks],
        "notes": board.notes,
    }


def _nameless(argument: str) -> str:
    """A folder of this machine says nothing to anybody else."""
    return "..." if argument.startswith(("/", "~")) else argument


def _verdict(check: Check) -> str:
    return "met" if check.met else "MISSED"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
