"""What a service pays for `import rose_producer`."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "rose_worker", "roseinfer", "fakeredis")


@pytest.mark.parametrize("module", ["rose_producer", "rose.protocol", "rose_cli.main"])
def test_the_base_install_loads_nothing_heavy(module: str) -> None:
    # given
    heavy = set(HEAVY) - ({"rose_worker"} if module == "rose_cli.main" else set())
    code = f"import sys, {module}; print(*sys.modules)"
    # when
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    # then
    assert not heavy & set(loaded.stdout.split())


def test_the_protocol_does_not_load_redis() -> None:
    code = "import sys, rose.protocol; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "redis" not in loaded.stdout.split()


def test_the_error_tree_is_a_leaf() -> None:
    """It has no imports of its own, so every package can raise from it."""
    code = (
        "import sys; before = set(sys.modules); import rose.errors; "
        "print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert set(loaded.stdout.split()) <= {"rose", "rose.errors", "__future__"}
