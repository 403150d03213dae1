"""A short run through the door: some of every fault, and nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import needs_redis_server


@needs_redis_server
def test_a_short_run_through_the_door_survives_some_of_every_fault() -> None:
    # when
    numbers = ["--responses", "30", "--chats", "15", "--replays", "10", "--seed", "2"]
    run = subprocess.run(
        [sys.executable, "-m", "tests.chaos.door", *numbers, "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    # then
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert set(result["rules"].values()) == {0}
    assert result["responses"] + result["chats"] >= 45
    assert result["replays"] == 10
    assert all(result["faults"].values())
