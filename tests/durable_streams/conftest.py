"""The protocol's own suite and client, as npm has them."""

import shutil
from pathlib import Path

import pytest

from tests.support.node import Node, find_node

_HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def node() -> Node:
    return find_node()


@pytest.fixture(scope="package")
def project(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are installed, and the programs that use them."""
    project = tmp_path_factory.mktemp("npm")
    node.install(_HERE, "durable_streams", project)
    for program in (_HERE / "programs").iterdir():
        shutil.copy(program, project)
    return project
