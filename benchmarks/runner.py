"""What all suites share: options, rounds in which contenders take turns, and what is shown."""

import argparse
import asyncio
import json
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.board import Board
from benchmarks.report import Facts, as_json, show

_WIDTH = 120
_T = TypeVar("_T")


class Case(ABC):
    title: str

    @abstractmethod
    def round(self, board: Board, turn: int) -> None:
        """Measure every contender once. Turn -1 warms up: its figures are thrown away."""

    def judge(self, board: Board) -> None:  # noqa: B027 - a case may have no target
        """Hold what was measured against the targets."""


class AsyncCase(Case):
    """Its rounds are coroutines."""

    def round(self, board: Board, turn: int) -> None:
        asyncio.run(self.measure(board, turn))

    @abstractmethod
    async def measure(self, board: Board, turn: int) -> None: ...


class Runner:
    """Measures one case after another and shows each board as soon as it is full."""

    def __init__(
        self,
        facts: Facts,
        rounds: int,
        json_file: Path | None = None,
        *,
        base: str | None = None,
        warm_up: bool = True,
        judge: bool = True,
    ) -> None:
        """`base`: the contender that all others are compared with."""
        self.facts, self.boards = facts, dict[str, Board]()
        self._rounds, self._json_file = rounds, json_file
        self._base, self._warm_up, self._judge = base, warm_up, judge
        self._out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
        self._progress = Console(stderr=True, highlight=False, soft_wrap=True)
        self._out.print(", ".join(f"{name} {value}" for name, value in facts.items()))

    def say(self, what: str) -> None:
        self._progress.print(what)

    def measure(
        self, name: str, case: Case, rounds: int | None = None, *, base: str | None = None
    ) -> None:
        """`rounds`, `base`: where this case has others."""
        if self._warm_up:
            self.say(f"{case.title}: warming up")
            case.round(Board(case.title), -1)
        board = self.boards[name] = Board(case.title, base=base or self._base)
        rounds = rounds or self._rounds
        for turn in range(rounds):
            began = time.perf_counter()
            case.round(board, turn)
            seconds = time.perf_counter() - began
            self.say(f"{case.title}: round {turn + 1} of {rounds} took {seconds:.0f} s")
        if self._judge:
            case.judge(board)
        else:
            board.notes.append("small and interpreted: these figures say that it runs, no more")
        show(board, self._out)
        if self._json_file:  # at once: a later case may fail, or be too slow to wait for
            self._json_file.write_text(json.dumps(as_json(self.facts, self.boards), indent=1))


def in_turn(contenders: Sequence[_T], turn: int) -> list[_T]:
    """Alternates the direction: no contender is always first, and neighbours run close in time.

    On a machine whose speed drifts this slows all contenders alike.
    """
    return list(contenders if turn % 2 == 0 else reversed(contenders))


def options(
    program: str, description: str | None, cases: Collection[str]
) -> argparse.ArgumentParser:
    """The options that every suite has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=(description or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--only", type=some_of(cases), default=list(cases), help=f"some of {','.join(cases)}")
    add("--rounds", type=int, help="of each case")
    add("--json", type=Path, metavar="FILE", help="every round, for machines")
    return parser


def some_of(known: Collection[str], *, or_none: bool = False) -> Callable[[str], list[str]]:
    """Reads names with commas between; with `or_none`, an empty text is no names."""

    def names(text: str) -> list[str]:
        chosen = text.split(",") if text or not or_none else []
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown {', '.join(sorted(unknown))}: choose from {', '.join(known)}"
            )
        return chosen

    return names


def exit_on_sigterm() -> None:
    """As an exception, so that Redis, workers and models do not stay behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
