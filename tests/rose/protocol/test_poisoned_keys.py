"""Whatever somebody else has written into a job's keys, the scripts go on: it costs that job."""

from itertools import product

import pytest

from rose.protocol import GROUP, JobSpec, Priority, encode_job
from rose.protocol.calls import Lease, NotTaken, Taken
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import FailedEvent, FinishedEvent
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, dead_letter, to_append, token

# fakeredis answers differently where a call inside a script fails.
pytestmark = needs_redis_server

FIELDS = (
    "status",
    "stream",
    "entry",
    "tokens",
    "taken_at",
    "cancel",
    "attempts",
    "epoch",
    "cost",
    "take",
)
VALUES = ("", "x", "-1", "7", "1.5", "1e9", "a b", b"\xff", "9" * 20, "9" * 20 + "-0", "5-0")


@pytest.fixture
def any_broker(broker: EmbeddedBroker) -> EmbeddedBroker:
    return broker


def check_that_a_job_ends(bench: Bench) -> None:
    """Fetched, taken or refused, and ended, so that nothing is left of it in the streams."""
    raw = encode_job(JobSpec(id="0-a", prompt="x"))
    bench.redis.xadd(bench.partition.jobs(Priority.NORMAL), {"job": raw})
    (job,) = bench.fetch("w")
    outcome = bench.take("w", job)
    if isinstance(outcome, Taken):
        lease = Lease(bench.partition, *job, outcome.take_id)
        assert bench.finish(lease, outcome.logged) == "OK"
    elif outcome in (NotTaken.MALFORMED, NotTaken.STATE_GONE):
        failed = FailedEvent(index=0, code="malformed_message", message="m")
        assert bench.call(dead_letter(bench, *job, failed)) == b"DEAD"
    assert bench.lengths() == [0, 0, 0]
    assert bench.redis.xpending(job.entry.stream, GROUP)["pending"] == 0


def test_any_value_in_any_field_of_the_state(bench: Bench) -> None:
    for field, value in product(FIELDS, VALUES):
        # given
        state, tokens = bench.partition.state("0-a"), bench.partition.tokens("0-a")
        bench.redis.delete(state, tokens)
        bench.redis.hset(state, mapping={field: value})
        # when / then
        check_that_a_job_ends(bench)


@pytest.mark.parametrize(
    ("stream", "entry"),
    [
        ("x", "5-0"),
        ("{other}:jobs", "5-0"),
        (None, "5-0-0"),
        (None, "9" * 20 + "-0"),
        (None, "5-0"),
    ],
)
def test_a_state_that_points_elsewhere(bench: Bench, stream: str | None, entry: str) -> None:
    # given: None for the job's own stream, where no such entry is
    place = stream or bench.partition.jobs(Priority.NORMAL)
    bench.redis.hset(bench.partition.state("0-a"), mapping={"stream": place, "entry": entry})
    # when / then
    check_that_a_job_ends(bench)


@pytest.mark.parametrize("entry", ["1-0", "0-1", "7-3", "*"])
@pytest.mark.parametrize("tokens", [None, 1, 2])
def test_a_log_that_somebody_wrote(bench: Bench, entry: str, tokens: int | None) -> None:
    # given
    bench.redis.xadd(bench.partition.tokens("0-a"), {"event": b"x"}, id=entry)
    if tokens is not None:
        bench.redis.hset(bench.partition.state("0-a"), "tokens", tokens)
    # when / then
    check_that_a_job_ends(bench)


@pytest.mark.parametrize("what", ["state", "tokens"])
def test_a_key_of_another_kind(bench: Bench, what: str) -> None:
    bench.redis.set(getattr(bench.partition, what)("0-a"), "something else")
    check_that_a_job_ends(bench)


def test_a_run_with_a_gap_is_logged_up_to_it_and_does_not_end_the_job(bench: Bench) -> None:
    # given: somebody else has written into the log, where the third token belongs
    job, lease = bench.begin()
    bench.append(lease, token(0))
    bench.redis.xadd(bench.partition.tokens(job.id), {"event": b"x"}, id="2-7")
    # when
    run = to_append(lease, *map(token, range(4)))
    run.end = FinishedEvent(index=4, reason="eos", prompt_tokens=1)
    # then
    assert bench.publish([run]) == ["GAP"]
    assert (job.status().tokens, job.status().status) == (1, "running")


def test_a_key_of_another_type_where_the_state_would_be_is_no_place_for_a_job(
    bench: Bench,
) -> None:
    bench.redis.set(bench.partition.state("0-mine"), "x")
    assert bench.client.submit("x", job_id="0-mine").id == "0-mine"
    assert bench.lengths() == [0, 0, 0]
