"""A short run of the whole harness: some of every fault, and nothing lost."""

import json
import os
import re
import signal
import subprocess
import sys

from tests.chaos.plan import Plan
from tests.chaos.short_run import short_run
from tests.conftest import needs_redis_server


@needs_redis_server
def test_a_short_run_survives_some_of_every_fault() -> None:
    # when
    result = short_run("tests.chaos", "--jobs", "120", "--seed", "3", "--placement", "--numbers")
    # then
    assert set(result["invariants"].values()) == {0}
    assert result["jobs"] >= 120
    assert result["placed"]["jobs"] > 0
    assert result["jobs_for_numbers"] > 20
    assert result["outcomes"]["finished"] > 80
    assert all(result["faults"][kind] > 0 for kind in Plan(3, 120).doses())
    assert result["faults"]["workers that poison killed"] >= 3
    assert result["outcomes"]["crash_loop"] == 1


@needs_redis_server
def test_an_interrupted_run_is_checked_and_reported() -> None:
    # given
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", "--jobs", "5000", "--seed", "3", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert run.stderr is not None
    try:
        for line in run.stderr:
            if (said := re.search(r"(\d+) of \d+ jobs ended", line)) and int(said[1]) >= 30:
                break
        # when: as a terminal does, to all its processes
        os.killpg(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=200)
    finally:
        run.kill()
        run.wait()
    # then
    assert run.returncode == 130, err
    result = json.loads(out)
    assert result["interrupted"] is True
    assert set(result["invariants"].values()) == {0}
    assert 30 <= result["jobs"] < 5000
