"""What the KV cache may have of a GPU, and what happens when a step has no memory."""

from typing import Any

import pytest
import torch

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.execution.gpu_memory import Memory, cache_bytes
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.cache import KVCache
from roseinfer.sessions.session import Chunk
from tests.roseinfer.models import drain, greedy, prompts, reference, run_alone, tiny_llama, tokens

GB = 10**9


class Gauge:
    """A device of 100 GB, 20 of them in use; a step takes 5 more."""

    def __init__(self) -> None:
        self.restarts = 0

    def now(self) -> Memory:
        return Memory(80 * GB, 100 * GB)

    def restart(self) -> None:
        self.restarts += 1

    def peak(self) -> int:
        assert self.restarts == 1
        return 5 * GB


@pytest.fixture
def engine(no_native: None) -> InferenceEngine:
    return InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=512)


def room(engine: InferenceEngine, **options: Any) -> int:
    def make_cache(blocks: int) -> KVCache:
        shapes = [engine.cache.keys[0].shape] * 2
        made = KVCache([], blocks, 16, device=torch.device("cpu"), dtype=torch.float32)
        for store in (made.keys, made.values):
            store += [torch.zeros(blocks * 16, *shape[1:]) for shape in shapes]
        return made

    gpu = GpuOptions(max_batch_size=4, max_step_tokens=64, **options)
    return cache_bytes(Gauge(), engine._runner, make_cache, gpu, context=256)


def test_the_cache_gets_what_the_rest_leaves(engine: InferenceEngine) -> None:
    graphs = 1024**3
    assert room(engine) == 90 * GB - 20 * GB - 5 * GB - graphs
    assert room(engine, cuda_graphs=False) == 65 * GB
    assert room(engine, cuda_graphs=False, memory_utilization=0.5) == 25 * GB


def test_the_cache_of_the_profile_is_as_large_as_the_step(engine: InferenceEngine) -> None:
    """Four sequences of 16 tokens take a block each; then nothing keeps them."""
    made: list[int] = []

    def make_cache(blocks: int) -> KVCache:
        made.append(blocks)
        return engine.cache

    pool = engine.cache.pool
    gpu = GpuOptions(max_batch_size=4, max_step_tokens=64)
    cache_bytes(Gauge(), engine._runner, make_cache, gpu, context=256)
    assert made[-2:] == [5, 2]
    assert pool.used == 4


def test_no_room_for_a_cache_says_what_to_do(engine: InferenceEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"20\.00 are and a step takes 5\.00; raise it"):
        room(engine, memory_utilization=0.2)


@pytest.mark.parametrize("wrong", [0.0, 1.1, float("nan")])
def test_impossible_shares(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0 and at most 1"):
        GpuOptions(memory_utilization=wrong)


def short_of_memory(engine: InferenceEngine, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of more than `rows` tokens succeeds."""
    run = engine._runner.run

    def limited(chunks: list[Chunk], **options: Any) -> Any:
        if sum(chunk.count for chunk in chunks) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return run(chunks, **options)

    monkeypatch.setattr(engine._runner, "run", limited)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("rows", [4, 2, 1])
def test_out_of_memory_preempts(
    engine: InferenceEngine,
    overlap: bool,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = prompts(20, 3, 9, 2)
    expected = [reference(tiny_llama(), prompt, 5) for prompt in asked]
    scheduler = OnlineScheduler(engine, overlap=overlap)
    names = [scheduler.add_request(prompt, params=greedy(5)) for prompt in asked[:3]]
    early = [scheduler.step() for _ in range(2)]
    short_of_memory(engine, rows, monkeypatch)
    names.append(scheduler.add_request(asked[3], params=greedy(5)))
    outputs = {name: [o for step in early for o in step if o.request_id == name] for name in names}
    for name, more in drain(scheduler).items():
        outputs[name] += more
    assert [tokens(outputs[name]) for name in names] == expected
    assert "out of memory in a step" in caplog.text
    assert scheduler.max_step_tokens <= rows
    assert scheduler.stats().preemptions > 0
    engine.cache.pool.check_integrity()
    assert engine.cache.pool.used == 0


def test_a_single_token_without_memory_is_the_end(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_of_memory(engine, 0, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        run_alone(engine, prompts(5)[0], greedy(2))
