"""The page about testing: its service and its tests, as somebody would write them down."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILES = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


def test_the_examples_pass(tmp_path: Path) -> None:
    # given
    for name, code in _FILES.findall((ROOT / "docs/testing.md").read_text()):
        (tmp_path / name).write_text(code)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    # when
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*words, tmp_path], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    # then
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout
    # and: neither Redis nor torch was needed
    script = [sys.executable, "-X", "importtime", "script.py"]
    said = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert said.stdout == "Hello.\n"
    assert not re.search(r"\| +(torch|transformers|rose_worker)$", said.stderr, re.MULTILINE)
