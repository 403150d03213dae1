"""A user of Redis without a right that a script needs: an error, and nothing is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from rose.protocol import calls
from rose.protocol.calls import Call
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import FailedEvent, FinishedEvent
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, dead_letter, to_append, token
from tests.support.script_calls import PREPARED, evaluate

pytestmark = needs_redis_server

REFUSAL = r"can't run this command|ACL failure in script"


@pytest.mark.parametrize(
    ("name", "right"), [("take", "hmget"), ("take", "xrevrange"), ("append", "hmget")]
)
def test_a_missing_right_is_an_error_and_no_verdict_on_the_job(
    server: EmbeddedBroker, bench: Bench, name: str, right: str
) -> None:
    # given
    call = PREPARED[name](bench)
    bench.redis.execute_command(
        *("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", f"-{right}")
    )
    # when / then
    with (
        redis.Redis(port=server.port, username="limited", password="-", protocol=2) as limited,
        pytest.raises(ResponseError, match=REFUSAL),
    ):
        evaluate(limited, call)


@pytest.fixture
def mute(server: EmbeddedBroker, bench: Bench) -> Iterator[redis.Redis]:
    """A user who may do anything but publish."""
    bench.redis.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-publish")
    with redis.Redis(port=server.port, username="mute", password="-", protocol=2) as mute:
        yield mute


def refused_to_publish(mute: redis.Redis, call: Call) -> Any:
    """What a repeat of the call replies."""
    with pytest.raises(ResponseError, match=REFUSAL):
        evaluate(mute, call)
    return evaluate(mute, call)


@pytest.mark.parametrize("tenant", ["", "t"])
def test_who_may_not_publish_has_done_all_the_rest(
    bench: Bench, mute: redis.Redis, tenant: str
) -> None:
    # given: three jobs that run and one that waits
    client, place = bench.client, bench.partition
    jobs = [client.submit("x", tenant=tenant) for _ in range(4)]
    going, at_once, given_up = (bench.start("w") for _ in range(3))
    one = to_append(at_once, token(0))
    one.end = FinishedEvent(index=1, reason="eos", prompt_tokens=1)
    failed = FailedEvent(index=0, code="crash_loop", message="as the test wishes")
    items = [to_append(going, token(0)), one]
    # when
    stored = refused_to_publish(mute, calls.append(place, items, ttl_s=60))
    refused_to_publish(mute, dead_letter(bench, given_up.entry, given_up.job_id, failed))
    refused_to_publish(mute, calls.cancel(place, jobs[3].id))
    # then: the repeat found all of it
    assert calls.outcomes(stored, 2) == ["DUP", "DUP"]
    assert [job.status().status for job in jobs] == ["running", "finished", "failed", "cancelled"]
    assert [job.status().tokens for job in jobs] == [1, 1, 0, 0]
    assert [event.index for event in jobs[1].stream()] == [0, 1]
    # and nothing but what has not ended counts
    assert bench.finish(going, 1) == "OK"
    load = {name: int(value) for name, value in bench.redis.hgetall(place.load).items()}
    assert (load[b"tokens"], load[b"bytes"], load[b"generated"]) == (0, 0, 2)
    tenants = client.tenants()
    assert (tenants.count, tenants.waiting, tenants.running) == (0, 0, 0)
