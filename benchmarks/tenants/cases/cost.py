"""What the queue costs without tenants, with them, and in an older version without any."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.board import Board, Target, at_least, at_most
from benchmarks.runner import Case, in_turn

_ROOT = Path(__file__).parents[3]
_PARTS = ("", "producer", "worker", "gateway", "cli")
BEFORE, WITHOUT = "before", "no tenants"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    name: str
    count: int
    more_is_better: bool
    with_tenants: float
    """at least so much of what it is without, or at most so many times"""

    def target(self, limit: float) -> Target:
        return at_least(limit) if self.more_is_better else at_most(2 - limit)


@dataclass(frozen=True, slots=True)
class Cost(Case):
    """Each figure in a process of its own, in turns; ratios are taken round by round."""

    figures: tuple[Figure, ...]
    tenants: tuple[int, ...]
    old: str | None
    """a commit; None: no older version takes part"""
    title: str = "What tenants cost"

    def round(self, board: Board, turn: int) -> None:
        with ExitStack() as stack:
            environments: dict[str, tuple[int, Mapping[str, str] | None]] = {}
            if self.old is not None:
                environments[BEFORE] = 0, stack.enter_context(_older(self.old))
            environments[WITHOUT] = 0, None
            environments |= {_name(count): (count, None) for count in self.tenants}
            for figure in self.figures:
                for who in in_turn(list(environments), turn):
                    tenants, environment = environments[who]
                    board.add(who, {figure.name: _probe(figure, tenants, environment)})

    def judge(self, board: Board) -> None:
        for figure in self.figures:
            name = figure.name
            rows = (name, WITHOUT), (name, BEFORE)
            board.check_ratio(f"{name}: {WITHOUT} to {BEFORE}", *rows, figure.target(0.98))
            for count in self.tenants:
                rows = (name, _name(count)), (name, WITHOUT)
                target = figure.target(figure.with_tenants)
                board.check_ratio(f"{name}: {_name(count)} to {WITHOUT}", *rows, target)


def _name(tenants: int) -> str:
    return f"{tenants} tenant{'s' * (tenants > 1)}"


def _probe(figure: Figure, tenants: int, environment: Mapping[str, str] | None) -> float:
    command = [sys.executable, "-m", "benchmarks.tenants.probe", figure.what]
    run = subprocess.run(
        [*command, str(figure.count), str(tenants)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=_ROOT if environment is None else environment["PROBE_FOLDER"],
    )
    if run.returncode != 0:
        raise RuntimeError(f"the probe of {figure.what} failed: {run.stderr[-1500:]}")
    return float(run.stdout)


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
            yield os.environ | {
                "PYTHONPATH": path,
                "PYTHONSAFEPATH": "1",
                "PROBE_FOLDER": str(harness),
            }
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
