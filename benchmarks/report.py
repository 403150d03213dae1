"""Boards as tables and as JSON."""

import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.board import Board, Check, Row
from rose_cli.local.broker import find_redis_server, version_of

Facts = dict[str, str | float]


def environment(program: str, packages: Sequence[str], others: Mapping[str, str]) -> Facts:
    """What the figures depend on. `others`: versions by name."""
    return {
        "command": " ".join([f"python -m {program}", *map(_nameless, sys.argv[1:])]),
        "cores": os.cpu_count() or 0,
        "load before": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **({"redis-server": server} if (server := _redis_server()) else {}),
        **{package: _version(package) for package in packages},
        **others,
    }


def show(board: Board, console: Console) -> None:
    table = Table(title=board.title, title_justify="left")
    for column in _columns(board):
        figures = column not in ("measured", "who")
        table.add_column(column, justify="right" if figures else "left", no_wrap=True)
    for row in board.rows:
        table.add_row(*cells(board, row))
    console.print(table)
    for check in board.checks:
        console.print(f"{_verdict(check)}: {check.what}: {check.reached}; target {check.target}")
    for note in board.notes:
        console.print(note)


def cells(board: Board, row: Row) -> list[str]:
    metric, contender = row
    values = board.rows[row]
    figures = (statistics.median(values), min(values), max(values))
    shown = [metric, contender, *(number(figure) for figure in figures)]
    if board.base is None:
        return shown
    base = (metric, board.base)
    compared = base in board.rows and contender != board.base
    return [*shown, f"{statistics.median(board.ratios(row, base)):.2f}" if compared else ""]


def _columns(board: Board) -> list[str]:
    columns = ["measured", "who", "median", "min", "max"]
    return columns if board.base is None else [*columns, f"to {board.base}"]


def number(value: float) -> str:
    """Three digits or more, and never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def as_json(facts: Facts, boards: Mapping[str, Board]) -> dict[str, Any]:
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


def _redis_server() -> str | None:
    program = find_redis_server()
    return program and version_of(program)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
