"""The same gateway by SDKs for Node, unmodified: their tests are JavaScript, in `node`."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.gateway.sdk.deployments import CHAT, ECHO, EMBED, FULL, SLOW, Deployment
from tests.support.node import Node, find_node

_TESTS = Path(__file__).with_name("node")


@pytest.fixture(scope="module")
def node() -> Node:
    return find_node()


@pytest.fixture(scope="module")
def folder(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests, beside the packages that they use."""
    folder = tmp_path_factory.mktemp("node")
    node.install(_TESTS, "node", folder)
    for file in _TESTS.glob("*.mjs"):
        shutil.copy(file, folder)
    return folder


@pytest.mark.parametrize("file", sorted(path.name for path in _TESTS.glob("*.test.mjs")))
def test_the_sdks_for_node_are_served(
    node: Node, folder: Path, deployment: Deployment, file: str
) -> None:
    models = {"chat": CHAT, "echo": ECHO, "embed": EMBED, "slow": SLOW, "full": FULL}
    ended = node.run(
        *("--test", "--test-reporter=tap", file),
        cwd=folder,
        env={**os.environ, "GATEWAY_URL": deployment.url, "GATEWAY_MODELS": json.dumps(models)},
    )

    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-1000:]
    assert "\n# skipped 0\n" in ended.stdout
