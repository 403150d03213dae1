"""Another language's client: the code of docs/protocol.md, which needs redis and msgpack alone."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from rose.protocol import JobSpec, Priority, encode_job
from tests.support.bench import Bench, token
from tests.support.echo import echoed_text

#: What EVAL is given beside it.
TTL_S = 86_400
PROTOCOL_PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_code_in_the_protocol_page_runs(
    raw: redis.Redis,
    queue: str,
    start_worker: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given: the page's own code, on this test's queue and server
    (code,) = re.findall(r"```python\n(.*?)```", PROTOCOL_PAGE.read_text(), re.DOTALL)
    start_worker()
    monkeypatch.setattr(redis, "Redis", lambda **_: raw)
    # when
    exec(code.replace("{default:0}", f"{{{queue}:0}}"))
    # then
    prompt = b"Once upon a time"
    end = {"type": "finished", "index": 40, "reason": "length", "prompt_tokens": len(prompt)}
    text, brace, last = capsys.readouterr().out.partition("{")
    assert text == echoed_text(prompt, 40)
    assert ast.literal_eval(brace + last) == end


def cancel(bench: Bench, job_id: str) -> None:
    """As the page says."""
    (script,) = re.findall(r"```lua\n(.*?)```", PROTOCOL_PAGE.read_text(), re.DOTALL)
    bench.redis.eval(script, 1, bench.partition.state(job_id), TTL_S)


def test_the_cancel_of_the_page_stops_a_job_that_was_added_by_hand(bench: Bench) -> None:
    # given: it has no state before its first take
    raw = encode_job(JobSpec(id="0-mine", prompt="x"))
    bench.redis.xadd(bench.partition.jobs(Priority.NORMAL), {"job": raw})
    cancel(bench, "0-mine")
    # when
    lease = bench.start("w")
    # then: the worker is told, and the state lives as long as the job
    assert bench.append(lease, token(0)) == ["CANCEL"]
    assert bench.redis.ttl(bench.partition.state("0-mine")) == -1


def test_the_cancel_of_the_page_leaves_nothing_for_ever(bench: Bench) -> None:
    # given
    job = bench.client.submit("x")
    # when: an id whose job has expired, and one whose job waits
    cancel(bench, "0-expired")
    cancel(bench, job.id)
    # then
    assert 0 < bench.redis.ttl(bench.partition.state("0-expired")) <= TTL_S
    assert bench.redis.ttl(bench.partition.state(job.id)) == -1
    assert job.status().cancel_requested
