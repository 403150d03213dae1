"""What the package holds, and what a service pays for `import rose_producer`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rose_producer

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "tokenizers", "numpy", "rose_worker", "roseinfer", "fakeredis")


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded after it, in a fresh process."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["rose_producer", "rose.protocol", "rose_cli.main"])
def test_the_base_install_loads_nothing_heavy(module: str) -> None:
    heavy = set(HEAVY) - ({"rose_worker"} if module == "rose_cli.main" else set())
    assert not heavy & loaded_by(f"import {module}")


def test_the_protocol_does_not_load_redis() -> None:
    assert "redis" not in loaded_by("import rose.protocol")


@pytest.mark.parametrize(
    ("name", "other_form"),
    [("Client", "rose_producer._async.client"), ("AsyncClient", "rose_producer._sync.client")],
)
def test_a_client_is_imported_without_redis_and_without_the_other_form(
    name: str, other_form: str
) -> None:
    """Redis' library comes when a client is made."""
    late = {"redis", "pydantic_settings", "opentelemetry"}
    assert not (late | {other_form}) & loaded_by(f"from rose_producer import {name}")
    assert "redis" in loaded_by(f"from rose_producer import {name}; {name}()")


def test_a_blocking_client_needs_no_asyncio_to_be_imported() -> None:
    assert "asyncio" not in loaded_by("from rose_producer import Client, DeadLetters")


def test_every_public_name_is_there() -> None:
    for name in rose_producer.__all__:
        assert getattr(rose_producer, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rose_producer.Nothing


def test_the_error_tree_is_a_leaf() -> None:
    """It has no imports of its own, so every package can raise from it."""
    before = loaded_by("")
    assert loaded_by("import rose.errors") - before <= {"rose", "rose.errors", "__future__"}


def test_the_blocking_clients_are_what_is_generated_from_the_asyncio_ones_today() -> None:
    command = [sys.executable, "producer/generate_blocking.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
