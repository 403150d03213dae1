"""A device that only sleeps: the engine's own steps around it, whose results come in time."""

import time

import pytest

from benchmarks.board import Board
from benchmarks.host.__main__ import BUSY, CPU, ENGINE, RATE, SERVICE, build
from benchmarks.host.device import SimulatedDevice, SimulatedEngine
from roseinfer import OnlineScheduler, SamplingParams
from roseinfer.gpu.options import GpuOptions
from tests.conftest import needs_redis_server


def test_tokens_come_when_the_device_has_computed_them() -> None:
    # given
    device = SimulatedDevice(0.02)
    engine = SimulatedEngine(
        simulated=device, gpu=GpuOptions(max_batch_size=4), kv_cache_tokens=512
    )
    scheduler = OnlineScheduler(engine, 4, 64, keep_finished=False, overlap=True)
    params = SamplingParams(max_new_tokens=10, ignore_eos=True)
    for _ in range(3):
        scheduler.add_request([1, 2, 3], params=params)
    # when
    began, tokens = time.perf_counter(), dict[str, list[int]]()
    while scheduler.has_unfinished():
        for output in scheduler.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    # then: a step for each token, one after another, the last one launched in vain
    assert [len(ids) for ids in tokens.values()] == [10, 10, 10]
    assert time.perf_counter() - began >= 10 * device.step_s
    assert device.busy_s >= 10 * device.step_s


def test_the_engine_is_measured_in_a_process() -> None:
    case, board = build("process", "tiny"), Board("")
    case.round(board, 0)
    assert {metric for metric, _ in board.rows} == {BUSY, CPU, RATE}
    assert board.median(BUSY, ENGINE) > 0


@needs_redis_server
@pytest.mark.parametrize("name", ["redis", "single"])
def test_the_service_is_measured_through_redis(name: str) -> None:
    case, board = build(name, "tiny"), Board("")
    case.round(board, 0)
    assert set(board.contenders(CPU)) == {"worker", "Redis", "client"}
    # More than 1 where the first tokens of a short run come late.
    assert board.median(BUSY, SERVICE) > 0
