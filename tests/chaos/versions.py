"""Two versions of the product in one run: some processes run the code of another commit.

The harness stays of one version: a process of the old one finds this `tests` package and the old
product beside each other.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rose.errors import ConfigurationError

_ROOT = Path(__file__).parents[2]
#: Where the import packages of the product lie in a checkout.
_PARTS = ("", "producer", "worker", "cli")


@contextmanager
def checked_out(what: str | None, folder: Path) -> Iterator[Path | None]:
    """A checkout: `what` is one already, or names a commit of this repository.

    Raises:
        ConfigurationError: neither.
    """
    if what is None:
        yield None
        return
    if (tree := Path(what)).is_dir():
        yield tree.resolve()
        return
    tree = folder / "old"
    added = _git("worktree", "add", "--detach", str(tree), what)
    if added.returncode != 0:
        raise ConfigurationError(
            f"--old {what}: neither a folder nor a commit of {_ROOT}: {added.stderr.strip()}"
        )
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def environment(tree: Path, folder: Path) -> Mapping[str, str]:
    """For a process that is to import the product from `tree`, started in `folder`."""
    harness = folder / "harness"
    harness.mkdir(exist_ok=True)
    if not (harness / "tests").exists():
        (harness / "tests").symlink_to(_ROOT / "tests")
    path = os.pathsep.join(str(p) for p in (harness, *(tree / part for part in _PARTS)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
    )
