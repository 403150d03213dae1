"""A job waits a little for the worker that has the beginning of its prompt in its cache."""

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from rose.protocol import ASIDE, EntryKey, JobSpec, Priority, calls, decode_job, encode_job
from rose.protocol.calls import NotTaken, Placed, QueueLimits, Submission, Take, Taken, new_take_id
from rose.protocol.jobs import new_job_id
from rose.protocol.placement import chain_of
from rose.protocol.tenants import TenantLimits
from rose_producer import Tenants
from rose_producer.request import Spread, conversation_of
from tests.support.bench import Bench

_SLOTS = 4
_LONG = 60_000

_SYSTEM = {"role": "system", "content": "You are a librarian. " * 50}


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": f"{text} " * 100}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


_FIRST = [_SYSTEM, _user("one")]
_SECOND = [*_FIRST, _answer("yes"), _user("two")]


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Two workers that place jobs."""
    for worker in ("a", "b"):
        _announce(bench, worker)
    return bench


def _announce(bench: Bench, worker: str, placement: int | None = _SLOTS) -> bool:
    facts = {"name": "m", "fingerprint": "f", "partitions": 1}
    call = calls.announce(
        bench.partition, worker, facts, mode="keep", slots=_SLOTS, placement=placement
    )
    return calls.announced(bench.call(call)).places


def _submit(
    bench: Bench,
    messages: Sequence[dict[str, str]],
    *,
    tenant: str = "",
    priority: Priority = Priority.NORMAL,
    salt: str = "",
    session: str = "",
    deadline_ms: int | None = None,
) -> str:
    fields = {"id": new_job_id(0), "prompt": messages, "cache_salt": salt}
    job = JobSpec.model_validate({**fields, "deadline_ms": deadline_ms})
    chain = chain_of(job, session)
    one = Submission.of(job, encode_job(job), priority, tenant=tenant, chain=chain)
    assert bench.call(calls.submit(bench.partition, [one], limits=QueueLimits())) == []
    return job.id


def _fetch(
    bench: Bench, worker: str, count: int = _SLOTS, *, longest_ms: int = _LONG, speed: int = 1
) -> dict[str, Placed | None]:
    """Which jobs it gets and has begun on, and where these belonged."""
    take_id = new_take_id()
    call = calls.fetch(
        bench.partition,
        worker,
        count,
        ageing_ms=60_000,
        take_id=take_id,
        placement=f"{longest_ms} {speed}",
    )
    streams, *_, outcomes, _due = bench.call(call)
    raws = [raw for _, flat in streams for raw in flat[1::2]]
    begun = {}
    for raw, outcome in zip(raws, outcomes, strict=True):
        taken = calls.taken(outcome, take_id)
        begun[decode_job(raw).id] = taken.placed if isinstance(taken, Taken) else None
    return begun


def _aside(bench: Bench) -> int:
    return int(bench.redis.zcard(_key(bench, "placement:aside")))


def _key(bench: Bench, name: str) -> str:
    return bench.partition.load.removesuffix("load") + name


def _first_turn(bench: Bench, worker: str, **options: str) -> None:
    job = _submit(bench, _FIRST, **options)  # type: ignore[arg-type]
    assert [*_fetch(bench, worker)] == [job]


def _whose(found: dict[str, Placed | None]) -> list[str]:
    return [placed.whose for placed in found.values() if placed is not None]


def test_the_next_turn_waits_for_the_worker_that_has_the_one_before(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    # when / then
    assert _fetch(bench, "b") == {}
    assert bench.redis.zcard(bench.partition.own_turn("a")) == 1
    found = _fetch(bench, "a")
    assert [*found] == [job]
    placed = found[job]
    assert placed is not None
    assert placed.whose == "own"
    assert placed.tokens > 100
    assert _aside(bench) == 0


def test_the_worker_that_has_it_takes_it_itself(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    # when
    found = _fetch(bench, "a")
    # then
    placed = found[job]
    assert placed is not None
    assert (placed.whose, placed.waited_s) == ("own", 0.0)


def test_who_is_free_takes_it_when_it_has_waited_long_enough(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    assert _fetch(bench, "b", longest_ms=20) == {}
    # when
    time.sleep(0.03)
    found = _fetch(bench, "b")
    # then: nothing waits for it any more until it says again that it lives
    placed = found[job]
    assert placed is not None
    assert placed.whose == "other"
    assert placed.waited_s >= 0.02
    _submit(bench, [*_FIRST, _answer("no"), _user("three")])
    assert len(_fetch(bench, "b")) == 1


def test_it_waits_no_longer_than_its_beginning_takes(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    _submit(bench, _SECOND)
    # when
    assert _fetch(bench, "b", longest_ms=_LONG, speed=1000) == {}
    # then
    ((_, due),) = bench.redis.zrange(_key(bench, "placement:aside"), 0, -1, withscores=True)
    seconds, microseconds = bench.redis.time()
    assert 0 < due - (seconds * 1000 + microseconds // 1000) < 1000


@pytest.mark.parametrize("why", ["full", "drains", "silent", "off"])
def test_nothing_waits_for_a_worker_that_cannot_take_it(bench: Bench, why: str) -> None:
    # given
    _first_turn(bench, "a")
    longest_ms = _LONG
    if why == "full":
        for _ in range(_SLOTS - 1):
            _submit(bench, [_user("else")])
        assert len(_fetch(bench, "a")) == _SLOTS - 1
    elif why == "drains":
        _announce(bench, "a", 0)
    elif why == "silent":
        bench.redis.hset(bench.partition.placing, "a", f"{_SLOTS} 1000")
    else:
        longest_ms = 0
    _submit(bench, _SECOND)
    # when / then
    assert _whose(_fetch(bench, "b", longest_ms=longest_ms)) == ["other"]


def test_what_stands_aside_for_a_worker_that_drains_is_anybodys(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    assert _fetch(bench, "b") == {}
    # when
    _announce(bench, "a", 0)
    # then
    assert [*_fetch(bench, "b")] == [job]


def test_a_worker_with_much_more_to_do_is_not_waited_for(bench: Bench) -> None:
    # given: it has three jobs more
    _first_turn(bench, "a")
    for name in ("p", "q"):
        _submit(bench, [_user(name)])
    assert len(_fetch(bench, "a")) == 2
    _submit(bench, _SECOND)
    # when / then
    assert _whose(_fetch(bench, "b")) == ["other"]


def test_what_many_jobs_begin_with_draws_them_to_nobody(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    # when: the same system message, and the same first question
    _submit(bench, [_SYSTEM, _user("else")])
    assert _whose(_fetch(bench, "b")) == ["nobody"]
    _submit(bench, _FIRST)
    assert _fetch(bench, "b") == {}
    _announce(bench, "a", 0)
    assert _whose(_fetch(bench, "b")) == ["other"]
    _announce(bench, "a")
    # then: two workers have it
    _submit(bench, _SECOND)
    assert _whose(_fetch(bench, "b")) == ["several"]


def test_beginnings_are_not_shared_across_salts(bench: Bench) -> None:
    # given
    _first_turn(bench, "a", salt="x")
    # when
    _submit(bench, _SECOND, salt="y")
    # then
    assert _whose(_fetch(bench, "b")) == ["nobody"]


def test_a_session_counts_where_no_beginning_is_known(bench: Bench) -> None:
    # given
    _first_turn(bench, "a", session="s")
    # when
    job = _submit(bench, [_user("compacted")], session="s")
    # then
    assert _fetch(bench, "b") == {}
    assert [*_fetch(bench, "a")] == [job]


@pytest.mark.parametrize("lone", [True, False])
def test_a_tenants_job_waits_too_and_is_charged_once(
    bench: Bench, tenants: Tenants, lone: bool
) -> None:
    # given
    tenants.set("t", TenantLimits(max_running_jobs=3))
    _first_turn(bench, "a", tenant="t")
    job = _submit(bench, _SECOND, tenant="t")
    others = [] if lone else [_submit(bench, [_user("else")], tenant="t")]
    # when
    begun = _fetch(bench, "b")
    # then
    assert [*begun] == others
    assert bench.redis.hget(bench.partition.state(job), "charged") == b"128"
    status = tenants.show("t")
    assert (status.running, status.waiting) == (2 + len(others), 0)
    found = _fetch(bench, "a")
    assert _whose(found) == ["own"]
    assert [*found] == [job]
    status = tenants.show("t")
    assert (status.running, status.waiting) == (2 + len(others), 0)


def test_passing_over_is_no_reason_to_leave_slots_empty(bench: Bench) -> None:
    # given: the first in line is another worker's
    _first_turn(bench, "a")
    _submit(bench, _SECOND)
    other = _submit(bench, [_user("else")])
    # when
    found = _fetch(bench, "b", 1)
    # then
    assert [*found] == [other]


def test_a_waiting_job_can_be_cancelled(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    assert _fetch(bench, "b") == {}
    # when
    assert bench.client.job(job).cancel()
    # then
    assert bench.client.job(job).status().status == "cancelled"
    assert _fetch(bench, "a") == {job: None}
    entry = bench.redis.xrevrange(bench.partition.jobs(Priority.NORMAL), count=1)[0]
    take = Take(EntryKey(bench.partition.jobs(Priority.NORMAL), entry[0].decode()), job)
    (reply,) = bench.call(
        calls.take(bench.partition, [take], "a", ttl_s=60, placement=f"{_LONG} 1")
    )
    assert calls.taken(reply, take.take_id) is NotTaken.NOTHING_TO_DO


def test_workers_without_placement_get_it_after_a_lease(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    assert _fetch(bench, "b") == {}
    assert bench.fetch("b") == []
    # when
    bench.call(calls.reclaim(bench.partition, lease_ms=0, interval_ms=0, patience_ms=0))
    found = {entry.job_id for entry in bench.fetch("b", 9)}
    # then: what stood aside once is nobody's second time
    assert job in found
    assert job not in _fetch(bench, "a")


def test_the_listener_leaves_it_to_the_worker_that_has_it(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND)
    stream = bench.partition.jobs(Priority.NORMAL)
    entry = bench.redis.xrevrange(stream, count=1)[0][0].decode()
    take = Take(EntryKey(stream, entry), job)
    # when
    call = calls.take(bench.partition, [take], "b", ttl_s=60, mode="unread", placement=f"{_LONG} 1")
    # then
    assert bench.call(call) == [0]
    assert [*_fetch(bench, "a")] == [job]


def test_where_one_worker_serves_there_is_nothing_of_it(bench: Bench) -> None:
    # given
    bench.redis.delete(bench.partition.workers, bench.partition.placing)
    assert not _announce(bench, "a")
    # when
    job = _submit(bench, _FIRST)
    # then
    ((_, fields),) = bench.redis.xrange(bench.partition.jobs(Priority.NORMAL))
    assert [*fields] == [b"job"]
    assert _fetch(bench, "a") == {job: None}
    assert bench.redis.keys(_key(bench, "placement:*")) == [bench.partition.placing.encode()]


@pytest.mark.parametrize("placement", [_SLOTS, None])
def test_a_worker_that_knows_nothing_of_it_turns_it_off(
    bench: Bench, placement: int | None
) -> None:
    assert _announce(bench, "a")
    # when: one of the release before, or without the setting
    if placement is None:
        _announce(bench, "old", None)
    else:
        bench.redis.hset(bench.partition.workers, "old", 1)
    # then
    assert not _announce(bench, "a")
    # when
    bench.redis.hdel(bench.partition.workers, "old")
    # then
    assert _announce(bench, "a")


def test_who_leaves_turns_nothing_off(bench: Bench) -> None:
    assert _announce(bench, "c")
    # when
    bench.call(calls.leave(bench.partition, "c", places=True))
    # then
    assert _announce(bench, "a")
    # when: its name stands where it should not
    bench.redis.hset(bench.partition.placing, "c", "4 1")
    # then
    for worker in ("a", "b"):
        _announce(bench, worker)
    assert _announce(bench, "a")


def test_beginnings_are_forgotten(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    new, old = _key(bench, "placement:new"), _key(bench, "placement:old")
    seconds, _ = bench.redis.time()
    for _ in range(2):
        # when
        bench.redis.hset(new, ":since", (seconds - 301) * 1000)
        _submit(bench, [_user("else")])
        assert len(_fetch(bench, "b")) == 1
        assert bench.redis.ttl(new) > 0
        assert bench.redis.exists(old)
    # then
    _submit(bench, _SECOND)
    assert _whose(_fetch(bench, "b")) == ["nobody"]


def test_who_stands_aside_is_no_worker(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    _submit(bench, _SECOND)
    assert _fetch(bench, "b") == {}
    # when
    status = bench.client.queue_status()
    # then
    assert ASIDE not in status.workers
    assert (status.running, status.waiting["normal"]) == (1, 1)


def test_a_deadline_holds_for_what_stands_aside(bench: Bench) -> None:
    # given
    _first_turn(bench, "a")
    job = _submit(bench, _SECOND, deadline_ms=calls.now_ms() + 1)
    assert _fetch(bench, "b") == {}
    # when
    time.sleep(0.01)
    bench.call(calls.end_late(bench.partition, job, 0))
    # then
    assert bench.client.job(job).status().status == "failed"


def _digests(job: JobSpec) -> list[str]:
    return [link.partition(":")[0] for link in chain_of(job).split(",") if link]


def test_chains_of_turns_have_beginnings_in_common() -> None:
    # given
    def chain(*messages: dict[str, str], **fields: object) -> list[str]:
        return _digests(JobSpec.model_validate({"id": "x", "prompt": list(messages), **fields}))

    # when / then: system messages have no link of their own, the longest comes first
    first, second = chain(*_FIRST), chain(*_SECOND)
    assert len(first) == 1
    assert second[2:] == first
    tools = [{"type": "function", "function": {"name": "f"}}]
    for other in ({"tools": tools}, {"adapter": "x"}, {"cache_salt": "t//"}):
        assert not set(chain(*_FIRST, **other)) & set(first)
    long = [_user(str(number)) for number in range(100)]
    assert len(chain(*long)) == 12


def test_thoughts_do_not_count() -> None:
    # given
    plain = JobSpec.model_validate({"id": "x", "prompt": _SECOND})
    thought = [*_FIRST, {**_answer("yes"), "reasoning_content": "hm"}, _user("two")]
    # when / then
    assert _digests(plain) == _digests(JobSpec.model_validate({"id": "x", "prompt": thought}))


@pytest.mark.parametrize("ids", [False, True])
def test_chains_of_texts_that_grow_have_beginnings_in_common(ids: bool) -> None:
    # given
    def chain(size: int) -> set[str]:
        text = "".join(f"{number:08}" for number in range(size // 8))
        prompt = [int(text[at : at + 4]) for at in range(0, size, 4)] if ids else text
        job = JobSpec(id="x", prompt=tuple(prompt) if ids else text)  # type: ignore[arg-type]
        return set(_digests(job))

    # when / then
    assert chain(1000) == set()
    for size, more in ((3000, 3000), (20_000, 8000), (100_000, 20_000), (600_000, 100_000)):
        assert chain(size) & chain(size + more)


def test_turns_of_a_conversation_come_to_one_partition() -> None:
    # given
    spread = Spread(8)
    # when
    for number in range(200):
        first = [_SYSTEM, _user(str(number))]
        turns = (first, [*first, _answer("yes"), _user("more")])
        partitions = {spread.choose(conversation_of(turn, None)) for turn in turns}
        # then
        assert len(partitions) == 1
    assert spread.choose(conversation_of([_user("x")], "s")) == spread.choose(
        conversation_of("y", "s")
    )


def test_a_partition_gets_no_more_than_its_share() -> None:
    # given
    spread = Spread(4)
    # when
    counts = Counter(spread.choose("all the same") for _ in range(4000))
    # then
    assert max(counts.values()) < 1.3 * 1000


def test_what_generates_nothing_is_not_placed() -> None:
    job = JobSpec.model_validate({"id": "x", "prompt": _FIRST})
    assert chain_of(job.model_copy(update={"prompt_only": "count"})) == ""
