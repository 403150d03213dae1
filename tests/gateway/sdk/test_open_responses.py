"""The compliance tests of Open Responses, unmodified, by their names.

They are in github.com/openresponses/openresponses: OPEN_RESPONSES names a checkout in which their
packages are installed (npm i bun zod@3), and BUN names bun.
"""

import json
import os
import shutil
import subprocess

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.support import scripted
from tests.support.gateway import running_deployment

CHECKOUT = os.environ.get("OPEN_RESPONSES", "")
BUN = os.environ.get("BUN") or shutil.which("bun")

pytestmark = pytest.mark.skipif(
    not (CHECKOUT and BUN), reason="needs a checkout of Open Responses, and bun"
)

NAMES = (
    *("basic-response", "assistant-phase", "response-output-phase-schema", "streaming-response"),
    *("websocket-response", "websocket-sequential-responses", "websocket-continuation"),
    *("websocket-reconnect-store-false-recovery", "websocket-previous-response-not-found"),
    *("websocket-failed-continuation-evicts-cache", "websocket-compact-new-chain"),
    *("system-prompt", "tool-calling", "multi-turn", "compact-response", "compact-missing-model"),
)


@pytest.fixture(scope="module")
def results() -> dict[str, list[str]]:
    """Of each test by its name: what is wrong."""
    with (
        EmbeddedBroker() as broker,
        running_deployment(broker.url, "open-responses", worker=scripted.WORKER) as deployment,
    ):
        words = ["--base-url", deployment.url, "--api-key", "none", "--model", scripted.MODEL]
        ended = subprocess.run(
            [str(BUN), "run", "bin/compliance-test.ts", "--json", *words],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    said = json.loads(ended.stdout)
    return {
        one["id"]: one.get("errors") or ([] if one["status"] == "passed" else [one["status"]])
        for one in said["results"]
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_test_of_open_responses_passes(results: dict[str, list[str]], name: str) -> None:
    assert results[name] == []


def test_pictures_are_refused_and_there_is_no_other_test(results: dict[str, list[str]]) -> None:
    """The models here read text."""
    assert results.keys() - set(NAMES) == {"image-input"}
    assert "400" in results["image-input"][0]
