"""What the README says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from rose_cli.demo.broker import EmbeddedBroker
from rose_producer.settings import ProducerSettings
from rose_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_tables_list_every_setting_with_its_default() -> None:
    for name, field in (ProducerSettings.model_fields | WorkerSettings.model_fields).items():
        default = field.default
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        shown = "" if default is None else f"`{default}`"
        assert f"| `ROSE_{name.upper()}` | {shown} | {field.description} |" in README


def test_the_sample_is_what_the_built_in_model_says() -> None:
    # given
    found = re.search(r"<!-- sample: rose (\w+) \"(.+?)\" -->\n```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    command, prompt, sample = found.groups()
    # when
    words = [sys.executable, "-m", "rose_cli", command, prompt]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    # then
    assert sample.split() == (prompt + said).split()


def test_the_python_example_runs(
    broker: EmbeddedBroker,
    queue: str,
    start_worker: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.setenv("ROSE_REDIS_URL", broker.url)
    monkeypatch.setenv("ROSE_QUEUE", queue)
    start_worker()
    # when
    exec(code, {})
    # then
    assert capsys.readouterr().out.endswith("length\n")


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
