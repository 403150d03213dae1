"""The boards as a picture: who makes how many tokens, and what growth costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.board import Board
from benchmarks.engine.cases import alone, beside_peers
from benchmarks.engine.contenders.ours import Ours

_OURS, _THEIRS = "#c2185b", "#90a4ae"
_WIDTH, _HEIGHT = 9.0, 3.2  # inches of a panel


def draw(boards: Mapping[str, Board], file: Path) -> None:
    """One panel a board that can be drawn; `file` ends in .svg or .png.

    Raises: ValueError: none of the boards can be drawn.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "roseinfer"  # the same figures give the same file
    from matplotlib import pyplot as plt

    painters = {"batch": _bars, "waiting": _waiting, "context": _context}
    cases = [(name.partition("/")[0], board) for name, board in boards.items()]
    drawn = [(painters[case], board) for case, board in cases if case in painters]
    if not drawn:
        raise ValueError("nothing to draw: it takes batch, waiting or context")
    figure, axes = plt.subplots(
        len(drawn), 1, figsize=(_WIDTH, _HEIGHT * len(drawn)), squeeze=False
    )
    for ax, (painter, board) in zip(axes[:, 0], drawn, strict=True):
        ax.set_title(board.title, fontsize=10, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        painter(ax, board)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)


def _bars(ax: Any, board: Board) -> None:
    """Median tokens per second, with the span of the rounds."""
    names = board.contenders(beside_peers.METRIC)[::-1]
    values = [board.rows[beside_peers.METRIC, name] for name in names]
    middles = [statistics.median(rounds) for rounds in values]
    spans = [
        [middle - min(v) for middle, v in zip(middles, values, strict=True)],
        [max(v) - middle for middle, v in zip(middles, values, strict=True)],
    ]
    colours = [_OURS if name == Ours.name else _THEIRS for name in names]
    ax.barh(names, middles, xerr=spans, color=colours, ecolor="#455a64", capsize=3)
    ax.set_xlabel("generated tokens/s")


def _waiting(ax: Any, board: Board) -> None:
    for metric in (alone.STEP, alone.SCHEDULER):
        _line(ax, board, metric, metric)
    ax.set_xscale("log")
    ax.set_xlabel("requests waiting")
    ax.legend(frameon=False, fontsize=8)


def _context(ax: Any, board: Board) -> None:
    _line(ax, board, alone.CONTEXT, alone.CONTEXT)
    ax.set_xlabel("tokens of context")
    ax.set_ylabel(alone.CONTEXT)


def _line(ax: Any, board: Board, metric: str, label: str) -> None:
    """Contenders are called "1,000 waiting": the number is where they stand."""
    names = board.contenders(metric)
    places = [int(name.split()[0].replace(",", "")) for name in names]
    ax.plot(places, [board.median(metric, name) for name in names], marker="o", label=label)
    ax.set_ylim(0, 1.1 * ax.dataLim.y1)
