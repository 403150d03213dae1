"""A sabotaged product must do the wrong thing, not fall over: that would be noticed as well."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import rose.protocol.scripts
from rose.protocol.calls import Taken
from rose.protocol.tenants import TenantLimits
from rose_cli.local.broker import EmbeddedBroker
from rose_producer import Tenants
from tests.chaos import sabotage
from tests.support.bench import Bench, token
from tests.support.floor import Floor


@pytest.fixture
def own_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for a sabotage's scripts. Afterwards those of the product are used again."""
    scripts = rose.protocol.scripts
    monkeypatch.setattr(scripts, "files", scripts.files)
    scripts.load("take")  # as in a worker that is forked from a process that has read them
    yield tmp_path / "scripts"
    monkeypatch.undo()
    sabotage.read_scripts_anew()


@pytest.fixture
def own_bench(broker: EmbeddedBroker, queue: str, own_scripts: Path) -> Iterator[Bench]:
    bench = Bench(broker, queue)
    yield bench
    bench.close()


def test_without_fencing_a_stale_worker_writes_where_the_log_ends(
    own_scripts: Path, own_bench: Bench
) -> None:
    # given
    sabotage.apply("fencing", own_scripts)
    own_bench.client.submit("x")
    zombie = own_bench.start("w1")
    own_bench.append(zombie, token(0))
    own_bench.steal(zombie, "w2")
    # when
    answer = own_bench.append(zombie, token(0))
    # then
    assert answer == ["OK"]
    assert own_bench.redis.xlen(own_bench.partition.tokens(zombie.job_id)) == 2


def test_without_caps_a_tenant_runs_more_than_it_may(own_scripts: Path, own_bench: Bench) -> None:
    # given
    sabotage.apply("caps", own_scripts)
    with Tenants(own_bench.client.settings) as tenants:
        tenants.set("small", TenantLimits(max_running_jobs=1))
    floor = Floor(own_bench)
    floor.submit("small", 3)
    # when / then
    assert floor.begin(3) == ["small"] * 3


def test_without_the_allowance_scripts_have_no_memory_beyond_the_limit(own_scripts: Path) -> None:
    # given
    allowed = rose.protocol.scripts.load("append").source
    # when
    sabotage.apply("memory", own_scripts)
    # then
    assert allowed.startswith("#!lua flags=allow-oom\n")
    assert rose.protocol.scripts.load("append").source.startswith("#!lua\n")


def test_a_worker_with_a_clock_of_its_own_judges_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: a worker whose clock is far from Redis'
    monkeypatch.setattr(Taken, "seconds_until", Taken.seconds_until)  # and back afterwards
    taken = Taken(1, 1, False, 0, None, now_ms=1000)
    assert 1.9 < taken.seconds_until(3000) <= 2.0
    # when
    sabotage.apply("clock", Path("unused"))
    # then
    assert taken.seconds_until(3000) < -1e9
