"""Imports between files go one way. Imports under TYPE_CHECKING count as well."""

import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp  # import-linter brings it
import pytest

PACKAGES = ("rose", "rose_producer", "rose_worker", "rose_gateway", "rose_cli", "roseinfer")


def check_no_circle(*packages: str) -> None:
    """Raise CycleError, which names the files of a circle."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()


def test_no_circle_between_files() -> None:
    check_no_circle(*PACKAGES)


def test_a_circle_for_types_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    package = tmp_path / "package_with_circle"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("import package_with_circle.two\n")
    (package / "two.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import package_with_circle.one\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # when, then
    with pytest.raises(CycleError, match=r"package_with_circle\.one"):
        check_no_circle(package.name)
