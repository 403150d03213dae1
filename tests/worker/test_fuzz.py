"""A worker between people who write what they like: thousands of messages, each accounted for."""

import contextlib
from dataclasses import replace

import redis
from hypothesis import given
from hypothesis import strategies as st

from rose.errors import MalformedMessage
from rose.protocol import FinishedEvent, Partition, Priority, TokenEvent, encode_event
from rose_worker.admission import _logged_ids
from tests.conftest import needs_redis_server
from tests.fuzz.ledger import Ledger, Sent
from tests.fuzz.messages import Fuzzer
from tests.fuzz.preparation import fuzz as fuzz_preparation
from tests.fuzz.run import fuzz


@needs_redis_server
def test_no_message_kills_a_worker_and_each_is_accounted_for() -> None:
    # when
    report = fuzz(2000, seed=7)
    # then
    assert report.problems == []
    assert sum(report.outcomes.values()) == 2000
    assert report.outcomes["dead letter: malformed_message"] > 500
    assert report.outcomes["dead letter: invalid_parameter"] > 200
    assert report.outcomes["job: finished"] > 100
    assert set(report.listeners) <= {"whole", "misled"}


def test_the_bookkeeping_of_a_run_bites(raw: redis.Redis, partition: Partition) -> None:
    # given: nothing that was sent is in Redis any more, and each of them is wrong in its own way
    ledger = Ledger(raw, partition)
    stream = partition.jobs(Priority.NORMAL)
    good = Sent(b"", None, "0-a", answer=(40, 41))
    ledger.sent(stream, "1-0", Sent(b"", "malformed_message"))
    ledger.sent(stream, "2-0", Sent(b"", None, "0-nobody"))
    ledger.sent(stream, "3-0", good)
    ledger.sent(stream, "4-0", replace(good, job_id="0-b"))
    ledger.sent(stream, "5-0", replace(good, job_id="0-c"))
    ledger.sent(stream, "6-0", Sent(b"", "malformed_message"))
    ledger.sent(stream, "7-0", replace(good, job_id="0-d"))
    raw.hset(
        partition.state("0-d"), mapping={"status": "running", "stream": stream, "entry": "7-0"}
    )
    for job_id, log in (("0-a", _own[:2]), ("0-b", [*_own[:2], _end, _end]), ("0-c", [_end])):
        raw.hset(partition.state(job_id), "status", "finished")
        for event in log:
            raw.xadd(partition.tokens(job_id), {"event": event})
    letter = {"code": "unheard_of", "stream": stream, "entry": "6-0"}
    for _ in range(2):
        raw.xadd(partition.dead, dict(letter))
    # when
    ledger.settle()
    # then
    problems = "\n".join(ledger.wrong)
    assert "gone without a trace" in problems
    assert "its status is None" in problems
    assert "its status is running" in problems
    assert "ends with ['tokens', 'tokens']" in problems
    assert "ends with ['tokens', 'tokens', 'finished', 'finished']" in problems
    assert "it said []" in problems
    assert "a code that nobody knows, unheard_of" in problems
    assert "a second dead letter" in problems
    assert (len(ledger.wrong), ledger.open) == (8, 0)


_own = [encode_event(TokenEvent(index=i, token_ids=(40 + i,), text="")) for i in range(4)]
_end = encode_event(FinishedEvent(index=2, reason="eos", prompt_tokens=1))
_fuzzer = Fuzzer(1)
_damaged = [_fuzzer.event() for _ in range(2000)]


@given(
    st.lists(st.sampled_from(_own) | st.sampled_from(_damaged), max_size=6),
    st.integers(0, 5),
)
def test_a_log_is_read_back_whole_or_refused(log: list[bytes], logged: int) -> None:
    with contextlib.suppress(MalformedMessage):
        assert len(_logged_ids(log, logged)) == logged


@needs_redis_server
def test_what_strangers_send_to_be_prepared_costs_nobody_else() -> None:
    # when
    report = fuzz_preparation(schemas=30, patterns=15, templates=6, seed=7)
    # then
    assert report.problems == []
    assert sum(report.outcomes.values()) == 51
    for kind in ("schema", "pattern", "template"):
        assert report.outcomes[f"{kind}: answered"]
        assert report.outcomes[f"{kind}: refused"]
