"""What the queue costs without tenants, with them, and in the version of an older commit."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.board import Board, Target, at_least, at_most
from benchmarks.process_group import ProcessGroup
from benchmarks.runner import Case, in_turn

_ROOT = Path(__file__).parents[3]
_PARTS = ("", "producer", "worker", "gateway", "cli")
BEFORE, WITHOUT = "before", "no tenants"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    name: str
    count: int
    """jobs of a block"""
    blocks: int
    """in a round"""
    more_is_better: bool
    with_tenants: float
    """at least so much of what it is without, or at most so many times"""
    beside_older: bool = True
    """False: of what an older version's sources cannot do uncompiled"""

    def target(self, limit: float) -> Target:
        return at_least(limit) if self.more_is_better else at_most(2 - limit)


@dataclass(frozen=True, slots=True)
class Cost(Case):
    """All contenders are up at once, each with a server and a worker of its own, and measure
    blocks of jobs in turns: a machine's speed drifts by more than what is looked for here."""

    figures: tuple[Figure, ...]
    tenants: tuple[int, ...]
    old: str | None
    """a commit; None: no older version takes part"""
    title: str = "What tenants cost"

    def round(self, board: Board, turn: int) -> None:
        with ExitStack() as stack:
            older = stack.enter_context(_older(self.old)) if self.old is not None else None
            for figure in self.figures:
                for who, values in self._blocks(figure, older, turn).items():
                    board.add(who, {figure.name: statistics.median(values)})

    def _blocks(
        self, figure: Figure, older: Mapping[str, str] | None, turn: int
    ) -> dict[str, list[float]]:
        """What each contender reached in each block."""
        with ExitStack() as stack:
            probes = {}
            if older is not None and figure.beside_older:
                probes[BEFORE] = _Probe(figure, 0, older)
            probes[WITHOUT] = _Probe(figure, 0)
            probes |= {_name(count): _Probe(figure, count) for count in self.tenants}
            for probe in probes.values():
                stack.enter_context(probe)
            values: dict[str, list[float]] = {who: [] for who in probes}
            for block in range(-1, figure.blocks):
                for who in in_turn(list(probes), turn + block):
                    value = probes[who].measure()
                    if block >= 0:  # that before warms up
                        values[who].append(value)
            return values

    def judge(self, board: Board) -> None:
        for figure in self.figures:
            name = figure.name
            rows = (name, WITHOUT), (name, BEFORE)
            board.check_ratio(f"{name}: {WITHOUT} to {BEFORE}", *rows, figure.target(0.98))
            for count in self.tenants:
                rows = (name, _name(count)), (name, WITHOUT)
                target = figure.target(figure.with_tenants)
                board.check_ratio(f"{name}: {_name(count)} to {WITHOUT}", *rows, target)
                rows = (name, _name(count)), (name, BEFORE)
                board.check_ratio(f"{name}: {_name(count)} to {BEFORE}", *rows, figure.target(0.9))


def _name(tenants: int) -> str:
    return f"{tenants} tenant{'s' * (tenants > 1)}"


class _Probe:
    """A process of `benchmarks.tenants.probe`."""

    def __init__(
        self, figure: Figure, tenants: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: of an older version."""
        self._what = figure.what
        module = [sys.executable, "-m", "benchmarks.tenants.probe"]
        command = [*module, figure.what, str(figure.count), str(tenants)]
        self._group = ProcessGroup(command, os.environ if environment is None else environment)

    def __enter__(self) -> Self:
        self._group.start(talks=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._group.end()

    def measure(self) -> float:
        """A block of it. Raises: RuntimeError: it ended instead."""
        self._group.say("")
        return float(self._group.answer(f"the probe of {self._what}"))


@contextmanager
def _older(commit: str) -> Iterator[Mapping[str, str]]:
    """Its product, and the benchmarks of this version.

    Raises: subprocess.CalledProcessError: there is no such commit.
    """
    git = ["git", "-C", str(_ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="rose-older-") as folder:
        tree, harness = Path(folder, "tree"), Path(folder, "harness")
        subprocess.run([*git, "add", "-q", "--detach", str(tree), commit], check=True)
        try:
            harness.mkdir()
            (harness / "benchmarks").symlink_to(_ROOT / "benchmarks")
            paths = [harness, *(tree / part for part in _PARTS)]
            path = os.pathsep.join(map(str, paths))
            yield os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
