"""What a stranger sends may hang or grow while it is prepared: that costs its job, and no other."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rose.errors import InvalidParameter
from rose.protocol import Partition
from rose_producer import Client
from rose_worker.preparation import _Child, _shortly
from tests.support.bench import wait_until
from tests.support.echo import StartWorker, has_no_jobs
from tests.support.greedy_model import GROWS, HANGS, write_model

_REAL: dict[str, Any] = {"engine": "rose", "device": "cpu", "torch_threads": 1}


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def integer(**keywords: Any) -> str:
    value = {"type": "integer", **keywords}
    return json.dumps({"type": "object", "properties": {"n": value}, "required": ["n"]})


def test_a_template_that_hangs_or_grows_costs_its_job_and_no_other(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    tmp_path: Path,
) -> None:
    # given
    worker = start_worker(**_REAL, model=str(write_model(tmp_path / "model")))
    # when
    greedy = [client.submit(asked(text), max_new_tokens=2) for text in (HANGS, GROWS) * 3]
    mates = client.submit_many([asked(f"Once {n}") for n in range(6)])
    # then
    for mate in mates:
        assert mate.result(600).token_ids
    for job in greedy:
        with pytest.raises(InvalidParameter, match="template and tokenizer take more than"):
            job.result(600)
        assert job.status().epoch == 1, "no other worker is given it"
    assert raw.xlen(partition.dead) == 0
    assert worker.running
    assert worker.http("/healthz") is not None
    wait_until(lambda: has_no_jobs(raw, partition))


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (integer(multipleOf=62615533), "json_schema.properties.n.multipleOf"),
        (integer(multipleOf=2000003), "json_schema.properties.n.multipleOf"),
        # too many to be listed
        (integer(multipleOf=86400, minimum=0, maximum=10**9), "json_schema.properties.n.mult"),
        (integer(multipleOf=65536, minimum=65536, maximum=2**40), "json_schema.properties.n.mult"),
        (integer(**{"not": {"const": 3}}), "json_schema.properties.n.not"),
        (
            json.dumps(
                {
                    "type": "object",
                    "properties": {
                        f"p{n}": {"type": "integer", "multipleOf": 99991 - 2 * n} for n in range(64)
                    },
                }
            ),
            "json_schema.properties.p0.multipleOf",
        ),
        (
            json.dumps({"allOf": [{"type": "integer", "multipleOf": 1009}, {"multipleOf": 997}]}),
            "json_schema",
        ),
    ],
)
def test_a_schema_that_costs_too_much_is_refused_with_its_path(
    client: Client,
    start_worker: StartWorker,
    raw: redis.Redis,
    partition: Partition,
    schema: str,
    path: str,
) -> None:
    # given
    worker = start_worker(**_REAL)
    # when
    for limits in ({"json_schema": schema}, {"grammar": f"start: %json {schema}"}):
        job = client.submit("Once", max_new_tokens=40, seed=1, **limits)
        # then
        with pytest.raises(InvalidParameter) as caught:
            job.result(600)
        expected = path if "json_schema" in limits else path.replace("json_schema", "grammar")
        assert expected.partition(".")[0] in str(caught.value)
        if "json_schema" in limits:
            assert path in str(caught.value)
        assert "start:" not in str(caught.value), "nobody has sent our source"
        assert job.status().tokens == 0
        assert job.status().epoch == 1
    assert client.submit("Once", max_new_tokens=2).result(600).token_ids
    assert raw.xlen(partition.dead) == 0
    assert worker.running


def test_a_pattern_that_counts_is_followed_or_refused(
    client: Client, start_worker: StartWorker, raw: redis.Redis, partition: Partition
) -> None:
    # given
    start_worker(**_REAL)
    many, few = (
        client.submit("Once", regex=rf"(\p{{L}}+ ?){{2,{count}}}", max_new_tokens=8)
        for count in (1000, 40)
    )
    # when / then
    assert few.result(600).token_ids
    with pytest.raises(InvalidParameter, match="counted in so many ways"):
        many.result(600)
    assert raw.xlen(partition.dead) == 0


def test_ordinary_schemas_are_followed(client: Client, start_worker: StartWorker) -> None:
    start_worker(**_REAL)
    for step, more in (
        (5, {}),
        (10, {"minimum": 0, "maximum": 100}),
        (86400, {"minimum": 0, "maximum": 864000}),
        (1000000, {"minimum": 0, "maximum": 5000000}),
    ):
        schema = integer(multipleOf=step, **more)
        text = client.submit("Once", max_new_tokens=60, json_schema=schema).result(600).text
        if text.endswith("}"):
            assert json.loads(text)["n"] % step == 0


def children(pid: int | None) -> list[int]:
    """But not the watchdog."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(child) for task in tasks for child in task.read_text().split()]
    return [c for c in pids if b"timekeeper" not in Path(f"/proc/{c}/cmdline").read_bytes()]


def test_a_preparer_that_dies_is_replaced(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    # given
    worker = start_worker(**_REAL, model=str(write_model(tmp_path / "model")))
    for count in (1, 2):
        hangs = client.submit(asked(HANGS), max_new_tokens=2)
        wait_until(lambda job=hangs: job.status().status == "running")
        # when: it dies, and the second time all that it has forked
        (preparer,) = children(worker.pid)
        others = children(preparer) if count == 2 else []
        for pid in (preparer, *others):
            os.kill(pid, signal.SIGKILL)
        mates = client.submit_many([asked(f"Once {n}") for n in range(12)])
        # then: what they had in hand ends as it would have, and what comes is prepared
        for mate in mates:
            assert mate.result(600).token_ids
        with pytest.raises(InvalidParameter, match="template and tokenizer take more than"):
            hangs.result(600)
        assert worker.log.count("prepares jobs has died: another one is started") == count
        assert {job.status().epoch for job in (hangs, *mates)} == {1}
    assert worker.http("/healthz") is not None


def test_a_child_that_is_killed_costs_no_job(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    # given: children that wait for jobs
    worker = start_worker(**_REAL, model=str(write_model(tmp_path / "model")))
    for job in client.submit_many([asked(f"Once {n}") for n in range(4)]):
        assert job.result(600).token_ids
    (preparer,) = children(worker.pid)
    # when
    for child in children(preparer):
        os.kill(child, signal.SIGKILL)
    # then
    for job in client.submit_many([asked(f"Twice {n}") for n in range(4)]):
        assert job.result(600).token_ids
    assert children(worker.pid) == [preparer]


def test_a_model_whose_template_never_ends_is_not_served(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    # given
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"
    model = write_model(tmp_path / "model", endless)
    # when
    worker = start_worker(**_REAL, model=str(model), ready=False)
    # then
    wait_until(lambda: not worker.running)
    assert worker.exit_status != 0
    assert "the tokenizer or the chat template of this model cannot be used" in worker.log


@pytest.fixture
def busy_child() -> Iterator[tuple[subprocess.Popen[bytes], _Child]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield process, _Child(process.pid, os.getpid(), ours)
        process.kill()


def test_a_child_that_waits_for_a_processor_does_not_stand_still(
    busy_child: tuple[subprocess.Popen[bytes], _Child],
) -> None:
    process, child = busy_child
    # given: one that works, however little of a processor it gets
    assert not any(child.stands_still() for _ in range(20))
    # when
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    # then
    child.stands_still()  # it may have worked since it was last asked
    assert child.stands_still()
    # and when it has gone
    process.kill()
    process.wait()
    assert child.stands_still()


class Slow:
    """A child that gets so much of a processor each time when somebody looks, in seconds."""

    def __init__(self, shares: list[float]) -> None:
        self._shares = shares
        self.worked_s = 0.0

    def stands_still(self) -> bool:
        share = self._shares.pop(0)
        self.worked_s += share
        return share == 0


@pytest.mark.parametrize(
    ("shares", "left"),
    [
        ([0.0, *[0.01] * 20], 15),  # it waits for a processor
        ([0.0, 0.0, 0.0, 0.01], 1),  # stopped
        ([0.0, 0.01, 0.0, 0.01, 0.0, 0.0, 0.01], 1),  # an answer that was late
    ],
)
async def test_a_short_job_is_judged_by_its_processor_time(shares: list[float], left: int) -> None:
    # given: a job that does not end
    asked = asyncio.get_running_loop().create_future()
    # when
    await _shortly(Slow(shares), asked)  # type: ignore[arg-type]
    # then
    assert len(shares) == left
