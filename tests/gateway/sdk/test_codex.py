"""Codex, unmodified: a turn with its own shell and its own patches, which a script plays.

Where it is not on the PATH it can be fetched: npm i @openai/codex, and CODEX names it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.support import scripted
from tests.support.gateway import Deployment, running_deployment

PROGRAM = os.environ.get("CODEX") or shutil.which("codex")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Codex: npm i @openai/codex")

PATCH = "*** Begin Patch\n*** Add File: b.txt\n+patched\n*** End Patch\n"
PROVIDER = """\
model = "{model}"
model_provider = "rose"
[model_providers.rose]
name = "rose"
base_url = "{url}"
wire_api = "responses"
env_key = "CODEX_TEST_KEY"
supports_websockets = {websockets}
"""


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with (
        EmbeddedBroker() as broker,
        running_deployment(broker.url, "codex", worker=scripted.WORKER) as deployment,
    ):
        yield deployment


def run(folder: Path, config: str, prompt: str) -> str:
    """In an empty folder, with a configuration of its own. Returns the last message."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(config)
    words = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt]
    ended = subprocess.run(
        [str(PROGRAM), *words],
        cwd=work,
        env={**os.environ, "CODEX_HOME": str(home), "CODEX_TEST_KEY": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def catalogue(deployment: Deployment, folder: Path) -> str:
    """The gateway's own, as a line of the configuration."""
    models = deployment.get("/models?client_version=0.171.0").json()
    path = folder / "models.json"
    path.write_text(json.dumps({"models": models["models"]}))
    return f'model_catalog_json = "{path}"\n'


def shell(command: str) -> dict[str, Any]:
    return {"call": "exec_command", "arguments": {"cmd": command}}


#: With a catalogue Codex offers patches as a custom tool, whose grammar it sends.
CUSTOM = {"call": "apply_patch", "arguments": {"input": PATCH}}
IN_SHELL = shell(f"apply_patch <<'EOF'\n{PATCH}EOF")


@pytest.mark.parametrize("websockets", ["false", "true"])
@pytest.mark.parametrize("of_catalogue", [False, True])
def test_a_turn_runs_commands_and_patches(
    deployment: Deployment, tmp_path: Path, of_catalogue: bool, websockets: str
) -> None:
    # given
    config = PROVIDER.format(model=scripted.MODEL, url=deployment.url, websockets=websockets)
    if of_catalogue:
        config = catalogue(deployment, tmp_path) + config

    # when
    patch = CUSTOM if of_catalogue else IN_SHELL
    look = {"say": "I look.", **shell("echo made-here > a.txt")}
    tell = {"say": "It says {result}"}
    said = run(tmp_path, config, scripted.script(look, patch, shell("cat a.txt b.txt"), tell))

    # then
    files = {path.name: path.read_text() for path in (tmp_path / "work").iterdir()}
    assert files == {"a.txt": "made-here\n", "b.txt": "patched\n"}
    assert "made-here" in said
    assert "patched" in said
    assert ("WS /v1/responses" in deployment.gateway.log) or websockets == "false"
