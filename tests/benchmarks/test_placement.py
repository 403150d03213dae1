"""The benchmark of placement counts what a conversation's turns find in a cache."""

import pytest

from benchmarks.placement.conversations import Trace, converse
from benchmarks.placement.simulation import simulated
from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import StartWorker


@needs_redis_server
def test_simulated_workers_keep_their_conversations() -> None:
    # when
    rates = {}
    for how in ("unplaced", "placed", "hashed"):
        seen, _ = simulated(workers=4, jobs=300, how=how, load=0.5)
        rates[how] = seen.cached / seen.prompt
    # then
    assert rates["unplaced"] < rates["placed"]
    assert rates["placed"] > 0.9 * rates["hashed"]


async def test_a_trace_of_conversations_is_measured(
    broker: EmbeddedBroker, queue: str, start_worker: StartWorker
) -> None:
    # given
    start_worker()
    trace = Trace(conversations=2, turns=3, system_words=9, turn_words=5, tokens=4)
    # when
    outcome = await converse({"redis_url": broker.url, "queue": queue}, trace, "salt")
    # then: the null engine has no cache
    assert (len(outcome.first_token_s), len(outcome.later_first_token_s)) == (6, 4)
    assert outcome.tokens == 24
    assert outcome.prompt_tokens > 0
    assert outcome.hit_rate == 0


@pytest.mark.parametrize("how", ["least", "hashed"])
async def test_turns_are_routed_to_workers_with_queues_of_their_own(
    broker: EmbeddedBroker, queue: str, start_worker: StartWorker, how: str
) -> None:
    # given
    queues = [f"{queue}-{number}" for number in range(2)]
    workers = [start_worker(queue=name) for name in queues]
    trace = Trace(6, turns=2, system_words=9, turn_words=5, tokens=4, bursts=True)
    # when
    outcome = await converse({"redis_url": broker.url}, trace, "salt", queues=queues, how=how)
    # then
    assert len(outcome.first_token_s) == 12

    def jobs() -> list[float]:
        return [worker.metrics()["rose_jobs_total"] for worker in workers]

    wait_until(lambda: sum(jobs()) == 12 + 2)  # and one of each client before
    assert min(jobs()) > 1
