"""What the package holds, and what a service pays for `import rose_producer`."""

import subprocess
import sys

import pytest

import rose_producer

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


@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
def test_a_client_is_imported_without_redis(name: str) -> None:
    """Redis' library comes when a client is made."""
    late = {"redis", "pydantic_settings", "opentelemetry"}
    assert not late & loaded_by(f"from rose_producer import {name}")
    assert "redis" in loaded_by(f"from rose_producer import {name}; {name}()")


def test_every_public_name_is_there() -> None:
    for name in rose_producer.__all__:
        assert getattr(rose_producer, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rose_producer.Nothing


def test_the_error_tree_is_a_leaf() -> None:
    """It has no imports of its own, so every package can raise from it."""
    before = loaded_by("")
    assert loaded_by("import rose.errors") - before <= {"rose", "rose.errors"}
