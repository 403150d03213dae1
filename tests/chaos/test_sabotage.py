"""A sabotaged product must do the wrong thing, not fall over: that would be noticed as well."""

from __future__ import annotations

from pathlib import Path

import pytest

import rose.protocol.scripts
from rose_cli.demo.broker import EmbeddedBroker
from tests.chaos import sabotage
from tests.support.bench import Bench, token


def test_without_fencing_a_stale_worker_writes_where_the_log_ends(
    broker: EmbeddedBroker, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    # and back afterwards
    monkeypatch.setattr(
        rose.protocol.scripts, "files", rose.protocol.scripts.files
    )  # and back afterwards
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
        rose.protocol.scripts.load.cache_clear()
