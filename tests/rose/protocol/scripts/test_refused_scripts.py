"""No script is ever half carried out: Redis refuses it before its first write, or not at all."""

from pathlib import Path

import pytest
from redis.exceptions import ResponseError

import rose.protocol.scripts
from rose.protocol import JobEntry, calls
from rose.protocol.calls import NotTaken
from tests.conftest import needs_redis_server
from tests.support.bench import Bench, token
from tests.support.script_calls import PREPARED, evaluate, script_of
from tests.support.troubles import out_of_memory, read_only

pytestmark = needs_redis_server

ONLY_READ = {"oldest_waiting", "queue_status", "tenant_status"}
#: Redis lets everything run at `maxmemory` but what asks for more and ends nothing.
NEEDS_MEMORY = {"room", "submit", "submit_of_a_tenant"}

TROUBLES = {
    "OOM": (out_of_memory, PREPARED.keys() - NEEDS_MEMORY),
    "READONLY": (read_only, ONLY_READ),
}


def everything(bench: Bench) -> dict[bytes, bytes]:
    """All keys of the queue with all they hold: entries, pending lists and times included."""
    keys = bench.redis.scan_iter(f"rose:{{{bench.partition.queue}:0}}:*")
    return {key: bench.redis.dump(key) for key in keys}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("name", PREPARED)
def test_a_refused_script_has_changed_and_said_nothing(
    bench: Bench, name: str, trouble: str
) -> None:
    # given
    call = PREPARED[name](bench)
    assert call.script.name == script_of(name)
    refuse, spared = TROUBLES[trouble]
    before = everything(bench)
    # when
    with refuse(bench.redis), bench.listening() as channels:
        if name in spared:
            bench.call(call)
            return
        with pytest.raises(ResponseError):
            evaluate(bench.redis, call)
        # then
        assert everything(bench) == before
        assert channels.get_message(timeout=0.05) is None
    # and it can be repeated
    bench.call(call)
    assert name == "room" or everything(bench) != before


def test_jobs_begin_go_on_and_end_out_of_memory(bench: Bench) -> None:
    # given: what fills Redis is waiting jobs
    ended, waiting, moved = bench.client.submit_many(["x", "y", "z"])
    with out_of_memory(bench.redis):
        # when
        lease = bench.start("w")
        assert bench.append(lease, token(0)) == ["OK"]
        assert bench.finish(lease, 1) == "OK"
        assert waiting.cancel()
        assert bench.take("w", *bench.fetch("w")) is NotTaken.NOTHING_TO_DO
        released = bench.start("w")
        held = JobEntry(released.entry, released.job_id)
        bench.call(calls.release(bench.partition, held.entry.stream, "w", [held]))
        # then
        assert [ended.status().status, waiting.status().status] == ["finished", "cancelled"]
        assert moved.status().status == "queued"
        assert bench.lengths() == [0, 1, 0]


def test_every_script_is_here() -> None:
    folder = Path(rose.protocol.scripts.__file__).parent
    scripts = {path.stem for path in folder.glob("*.lua") if not path.stem.startswith("common")}
    assert scripts == {script_of(name) for name in PREPARED}
