"""`rose` on a queue of the test's own: in this process, or as a process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.support.command import Rose, run_rose


@pytest.fixture
def place(broker: EmbeddedBroker, queue: str) -> dict[str, str]:
    return {"ROSE_REDIS_URL": broker.url, "ROSE_QUEUE": queue}


@pytest.fixture
def rose(place: dict[str, str]) -> Rose:
    """In this process."""
    return lambda *words, **given: run_rose(*words, **{**place, **given})


@pytest.fixture
def rose_process(place: dict[str, str]) -> Rose:
    """As a process."""

    def run(*words: str, text: bool = True, env: Mapping[str, str] = {}, **options: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "rose_cli", *words],
            capture_output=True,
            text=text,
            timeout=240,
            env={**os.environ, **place, **env},
            **options,
        )

    return run
