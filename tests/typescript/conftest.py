"""The package as `npm pack` makes it, in a project of its own."""

import shutil
from pathlib import Path

import pytest

from tests.support.node import Node, find_node

_PACKAGE = Path(__file__).parents[2] / "typescript"
PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(scope="package")
def node() -> Node:
    return find_node()


@pytest.fixture(scope="package")
def workshop(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is compiled, and what that takes."""
    workshop = tmp_path_factory.mktemp("workshop")
    node.install(_PACKAGE, "typescript", workshop)
    shutil.copytree(_PACKAGE / "src", workshop / "src")
    for name in ("package.json", "tsconfig.json", "README.md"):
        shutil.copy(_PACKAGE / name, workshop)
    compiled = node.run("node_modules/typescript/bin/tsc", cwd=workshop)
    assert compiled.returncode == 0, compiled.stdout
    return workshop


@pytest.fixture(scope="package")
def project(node: Node, workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty project into which the package was installed, and nothing else came with it."""
    project = tmp_path_factory.mktemp("project")
    packed = node.npm("pack", "--ignore-scripts", "--pack-destination", str(project), cwd=workshop)
    assert packed.returncode == 0, packed.stderr
    (archive,) = project.glob("*.tgz")
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    added = node.npm("install", "--offline", "--no-audit", archive.name, cwd=project)
    assert added.returncode == 0, added.stderr
    assert [path.name for path in (project / "node_modules").glob("[!.]*")] == ["roseinfer"]
    for program in PROGRAMS.glob("*.mjs"):
        shutil.copy(program, project)
    return project
