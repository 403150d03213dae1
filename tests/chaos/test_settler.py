"""Jobs that are over are checked while the run goes on, and leave neither Redis nor the harness."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rose.engine_records import text_lengths
from rose.protocol import FinishedEvent, Partition, TokenEvent, encode_event
from rose_producer import Client
from tests.chaos import clock
from tests.chaos.answers import null_answer
from tests.chaos.context import QUEUE, Options
from tests.chaos.faults import FaultInjector, jobs
from tests.chaos.faults.injector import CARRY_OUT
from tests.chaos.faults.scene import MAX_REPEATED, Scene
from tests.chaos.fleet import Fleet, names
from tests.chaos.invariants import Invariant
from tests.chaos.journal import Journal
from tests.chaos.plan import Fault, FaultKind, Kind, schedule
from tests.chaos.progress import Progress
from tests.chaos.raw import RawAdder
from tests.chaos.settler import Settler
from tests.chaos.topology import OneServer
from tests.conftest import needs_redis_server

pytestmark = needs_redis_server

OPTIONS = Options(seed=3, jobs=400, producers=1)
PLAN = OPTIONS.plan(1)
#: It brings no id of its own, so it has a key.
NUMBER = next(n for n in range(400) if PLAN.job(n).kind is Kind.PLAIN and not PLAN.job(n).named)
LATER = NUMBER + MAX_REPEATED + 1
PARTITION = Partition(QUEUE)


class Stage:
    """A queue and the journals of its clients, without processes."""

    def __init__(self, folder: Path, topology: OneServer, product: Client) -> None:
        self.folder, self.product = folder, product
        self.redis = topology.client_of(PARTITION)
        self.submitted = Journal(folder / "submitted-0.jsonl")
        self.delivered = Journal(folder / "delivered-0.jsonl")
        raw = RawAdder(topology.partitions, topology.client_of, PLAN, self.submitted)
        fleet = Fleet(OPTIONS, folder, topology, None)
        self.scene = Scene(fleet, topology, product, raw, Progress(folder))
        self.settler = Settler(self.scene, PLAN, rested_s=0.0)

    def run_job(self, number: int, *, result_ttl_s: int = 3600) -> str:
        """Submit it, leave in Redis what its worker would, and deliver that. Its id."""
        job_id = self.product.submit_many([PLAN.job(number).request])[0].id
        self.submitted.write(number, job_id, clock.now())
        answer = null_answer(PLAN.job(number))
        cursor = len(answer.tokens)
        tokens = TokenEvent(
            index=0,
            token_ids=answer.tokens,
            text=answer.text,
            text_lengths=text_lengths([f"{token_id} " for token_id in answer.tokens]),
        )
        for entry, event in (
            (f"{cursor}-0", tokens),
            (f"{cursor}-1", FinishedEvent(index=cursor, reason="length", prompt_tokens=1)),
        ):
            fields: dict[Any, Any] = {"event": encode_event(event)}
            self.redis.xadd(PARTITION.tokens(job_id), fields, id=entry)
            self.deliver(number, job_id, event.as_dict())
        for key in (PARTITION.state(job_id), PARTITION.tokens(job_id), named(number)):
            self.redis.expire(key, result_ttl_s)
        return job_id

    def deliver(self, number: int, job_id: str, event: dict[str, Any]) -> None:
        self.delivered.write(number, job_id, clock.now(), event)

    def is_gone(self, job_id: str, number: int) -> bool:
        """A time to live of a millisecond may not have passed yet."""
        deadline = clock.now() + 60.0
        while self.redis.exists(PARTITION.state(job_id), PARTITION.tokens(job_id), named(number)):
            if clock.now() > deadline:
                return False
        return True

    async def settle(self) -> list[Invariant]:
        """What is found."""
        self.scene.progress.update()
        await self.settler.settle()
        found = [*self.settler.found, *self.scene.progress.late]
        return [finding.rule for finding in found]


def named(number: int) -> str:
    return PARTITION.idempotency(PLAN.job(number).request.idempotency_key or "")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        OneServer(names(OPTIONS)) as topology,
        Client(redis_url=topology.direct_url, queue=QUEUE) as product,
    ):
        yield Stage(tmp_path, topology, product)


@pytest.fixture
def over_id(stage: Stage) -> str:
    """Of a job that is over, since a later one has ended too."""
    job_id = stage.run_job(NUMBER)
    stage.run_job(LATER)
    return job_id


async def test_a_job_that_is_over_is_checked_and_its_result_expires(
    stage: Stage, over_id: str
) -> None:
    # when
    found = await stage.settle()
    # then
    progress = stage.scene.progress
    assert found == []
    assert list(progress.settled) == [NUMBER]
    assert list(progress.delivered) == [LATER]
    assert progress.settled[NUMBER].tokens == len(null_answer(PLAN.job(NUMBER)).tokens)
    assert stage.is_gone(over_id, NUMBER)
    assert stage.settler.state.logs == {}


async def test_what_is_wrong_with_it_is_found(stage: Stage, over_id: str) -> None:
    # when
    event = TokenEvent(index=500, token_ids=(1,), text="1 ")
    stage.redis.xadd(PARTITION.tokens(over_id), {"event": encode_event(event)}, id="501-0")
    # then
    assert await stage.settle() == [Invariant.LOG]


async def test_what_comes_long_after_its_end_is_found(stage: Stage, over_id: str) -> None:
    # given
    assert await stage.settle() == []
    # when
    stage.deliver(NUMBER, over_id, {"type": "tokens", "index": 0, "token_ids": [1], "text": "1 "})
    # then
    assert await stage.settle() == [Invariant.ENDS]


@pytest.mark.usefixtures("over_id")
async def test_a_key_that_would_stay_or_is_gone_is_found(stage: Stage) -> None:
    # when
    stage.redis.persist(named(NUMBER))
    # then
    assert await stage.settle() == [Invariant.EXPIRY]


async def test_what_is_there_after_it_has_expired_is_found(stage: Stage, over_id: str) -> None:
    # given
    assert await stage.settle() == []
    assert stage.is_gone(over_id, NUMBER)
    # when: a worker that knows nothing writes on
    stage.redis.hset(PARTITION.state(over_id), "status", "running")
    next_one = LATER + MAX_REPEATED + 1
    stage.run_job(next_one)
    # then
    assert await stage.settle() == [Invariant.EXPIRY]


async def test_a_job_whose_entry_still_stands_in_its_stream_waits(
    stage: Stage, over_id: str
) -> None:
    # given
    stage.redis.persist(PARTITION.state(over_id))
    assert await stage.settle() == []
    assert NUMBER in stage.scene.progress.delivered
    # when
    stage.redis.expire(PARTITION.state(over_id), 3600)
    # then
    assert await stage.settle() == []
    assert NUMBER in stage.scene.progress.settled


@pytest.mark.usefixtures("over_id")
async def test_what_somebody_may_ask_for_again_stays(stage: Stage) -> None:
    # when
    stage.scene.crowd_from = NUMBER
    await stage.settle()
    # then
    assert stage.scene.progress.settled == {}
    # when
    stage.scene.crowd_from = None
    stage.scene.victims.add(NUMBER)
    await stage.settle()
    # then
    assert stage.scene.progress.settled == {}


@pytest.mark.usefixtures("over_id")
async def test_a_result_that_expires_by_a_fault_is_settled_without_its_log(stage: Stage) -> None:
    # given
    stage.scene.progress.update()
    fault = Fault(0, FaultKind.EXPIRE, 0.5, target=0, amount=0.5, seed=1)
    # when
    said = await jobs.expire(stage.scene, fault)
    # then
    assert stage.scene.expired == {NUMBER}, said
    assert stage.scene.surprises == []
    assert await stage.settle() == []
    assert NUMBER in stage.scene.progress.settled
    # when there is nothing left that may expire
    said = await jobs.expire(stage.scene, fault)
    # then
    assert said == "no job has ended yet"


async def test_a_fault_that_raises_is_found_and_the_run_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    async def raises(scene: Scene, fault: Fault) -> str:
        raise ValueError("oh")

    monkeypatch.setitem(CARRY_OUT, FaultKind.SLOW, raises)
    faults = schedule(1, {FaultKind.SLOW: 1, FaultKind.EXPIRE: 1})
    stage.scene.progress.jobs_ended = 10
    injector = FaultInjector(stage.scene, jobs=10)
    # when
    await injector.run(faults)
    # then
    assert [surprise.rpartition("raised ")[2] for surprise in stage.scene.surprises] == [
        "ValueError('oh')"
    ]
    assert injector.done.total() == 2
