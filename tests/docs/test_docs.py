"""What the pages say is so."""

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import transformers
from openai import OpenAI

from docs.reference import PAGES as GENERATED_PAGES
from rose_cli.local.broker import EmbeddedBroker
from tests.roseinfer.models import (
    ARCHITECTURES,
    COMPILED,
    COMPILED_STATEFUL,
    NOT_FUSED,
    STATEFUL,
)
from tests.support.gateway import running_gateway

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [
    "README.md",
    *map(str, sorted(page.relative_to(ROOT) for page in ROOT.glob("docs/**/*.md"))),
]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("path", GENERATED_PAGES, ids=lambda path: path.name)
def test_the_tables_are_what_the_code_says(path: Path) -> None:
    assert path.read_text() == GENERATED_PAGES[path](path.read_text())


def test_the_table_of_families_has_those_that_the_tests_run() -> None:
    # given
    page = (ROOT / "docs/own-model.md").read_text()
    rows = re.findall(r"^\| .+? \| (`\w+`.*?) \| .+? \| (fused|code|no) \|$", page, re.MULTILINE)
    # when
    told = {
        on_gpu: {name for types, own in rows if own == on_gpu for name in re.findall(r"\w+", types)}
        for on_gpu in ("fused", "code", "no")
    }
    # then
    fused = model_types(COMPILED - NOT_FUSED)
    assert told["fused"] == fused
    assert told["code"] == model_types(COMPILED) - fused
    assert told["no"] == model_types(COMPILED_STATEFUL)


def model_types(architectures: set[str]) -> set[str]:
    known = ARCHITECTURES | STATEFUL
    return {getattr(transformers, known[name][0]).model_type for name in architectures}


def test_the_sample_is_what_the_built_in_model_says() -> None:
    # given
    sample_in_readme = re.search(
        r"<!-- sample: rose (\w+) \"(.+?)\" -->\n```\n(.*?)```", README, re.DOTALL
    )
    assert sample_in_readme is not None
    command, prompt, sample = sample_in_readme.groups()
    # when
    words = [sys.executable, "-m", "rose_cli", command, prompt]
    generated = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    # then
    assert sample.split() == (prompt + generated).split()


@pytest.mark.parametrize(
    ("page", "prints"),
    [
        ("README.md", "length\n"),
        ("docs/tutorial.md", "fox: "),
        ("docs/python-client.md", '"brave"'),
        ("docs/own-model.md", "\n"),
        ("docs/openai-in-five-minutes.md", "|"),
    ],
)
def test_the_python_examples_run(
    page: str,
    prints: str,
    broker: EmbeddedBroker,
    queue: str,
    start_worker: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # given
    monkeypatch.setenv("ROSE_REDIS_URL", broker.url)
    monkeypatch.setenv("ROSE_QUEUE", queue)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    with ExitStack() as stack:
        if page != "docs/own-model.md":
            start_worker(engine="rose", torch_threads=1)
        if 'queue="embed"' in text:
            start_worker(queue="embed", task="embed")
        if "from openai" in text:
            gateway = stack.enter_context(running_gateway(broker.url, queue))
            monkeypatch.setenv("OPENAI_BASE_URL", gateway.url)
            monkeypatch.setenv("OPENAI_API_KEY", "none")
        # when: a page's examples build on each other
        names: dict[str, object] = {}
        for code in PYTHON.findall(text):
            exec(code, names)
        # what they have opened and a program would leave to its end
        for value in names.values():
            if isinstance(value, OpenAI):
                value.close()
    # then
    assert prints in capsys.readouterr().out


def test_the_curl_lines_of_the_pages_run(
    broker: EmbeddedBroker, queue: str, start_worker: Callable[..., object], tmp_path: Path
) -> None:
    """Each is asked of a gateway on another port; ids are those of the answers before."""
    # given
    start_worker(engine="rose", torch_threads=1)
    with running_gateway(broker.url, queue) as gateway:
        told: dict[str, str] = {}
        for page in (
            *("README.md", "docs/http.md", "docs/openai-in-five-minutes.md"),
            "docs/durable-streams.md",
        ):
            for line in curl_lines((ROOT / page).read_text()):
                command = line.replace("http://127.0.0.1:8080/v1", gateway.url)
                for name, value in told.items():
                    command = command.replace(name, value)
                # when
                words = ["/bin/sh", "-ec", command.replace("curl ", "curl -fsS ")]
                asked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
                # then
                assert asked.returncode == 0, f"{page}: {command}\n{asked.stderr}"
                if made := re.search(r'"id": ?"((?:resp|chatcmpl)_?-?([\w-]+))"', asked.stdout):
                    told |= {"RESPONSE_ID": made[1], "$ID": made[1], "JOB_ID": made[2], "$N": "3"}
        assert told


def curl_lines(text: str) -> list[str]:
    """Commands, each with the lines that it goes on in."""
    fenced = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    blocks = [block for language, block in fenced if not language]
    found = r"^curl .*?(?<!\\)$(?:\n  .*|\n\}')*"
    return [line for block in blocks for line in re.findall(found, block, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    """As `tests/FILE.py::NAME`, or `::NAME` for another one of the same file."""
    missing, file = [], ""
    for named, test in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", (ROOT / page).read_text()):
        file = named or file
        if not re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE):
            missing.append(f"{file}::{test}")
    assert missing == []
