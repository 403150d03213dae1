"""A sabotaged product must do the wrong thing, not fall over: that would be noticed as well."""

from __future__ import annotations

from pathlib import Path

import pytest

import rose.protocol.scripts
from rose.protocol.calls import Taken
from rose_cli.demo.broker import EmbeddedBroker
from tests.chaos import sabotage
from tests.support.bench import Bench, token


def test_without_fencing_a_stale_worker_writes_where_the_log_ends(
    broker: EmbeddedBroker, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    scripts = rose.protocol.scripts
    monkeypatch.setattr(scripts, "files", scripts.files)  # and back afterwards
    sabotage.apply("fencing", tmp_path / "scripts")
    bench = Bench(broker, queue)
    try:
        bench.client.submit("x")
        zombie = bench.start("w1")
        bench.append(zombie, token(0))
        bench.steal(zombie, "w2")
        # when
        answer = bench.append(zombie, token(0))
        # then
        assert answer == ["OK"]
        assert bench.redis.xlen(bench.partition.tokens(zombie.job_id)) == 2
    finally:
        bench.close()
        scripts.load.cache_clear()


def test_without_the_allowance_scripts_have_no_memory_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    scripts = rose.protocol.scripts
    monkeypatch.setattr(scripts, "files", scripts.files)  # and back afterwards
    allowed = scripts.load("append").source
    # when
    sabotage.apply("memory", tmp_path / "scripts")
    try:
        # then
        assert allowed.startswith("#!lua flags=allow-oom\n")
        assert scripts.load("append").source.startswith("#!lua\n")
    finally:
        scripts.load.cache_clear()


def test_a_worker_with_a_clock_of_its_own_judges_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: a worker whose clock is far from Redis'
    monkeypatch.setattr(Taken, "seconds_until", Taken.seconds_until)  # and back afterwards
    taken = Taken(1, 1, False, 0, None, now_ms=1000)
    assert 1.9 < taken.seconds_until(3000) <= 2.0
    # when
    sabotage.apply("clock", Path("unused"))
    # then
    assert taken.seconds_until(3000) < -1e9
