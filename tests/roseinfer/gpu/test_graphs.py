"""Decode through graphs: which one, what is padded, what is filled in. A stand-in replays them."""

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.execution.runners import trusted
from roseinfer.gpu.graphs import GraphedModel, batch_sizes
from roseinfer.model.attention_layers import find_layers
from roseinfer.model.probe import Reference
from roseinfer.sessions.session import Chunk
from tests.roseinfer.gpu.attention_cases import DEVICE
from tests.roseinfer.models import (
    answers,
    build,
    engine_run_by,
    greedy,
    prompts,
    reference,
    run_together,
    tiny_llama,
    tokens,
)


class Replayer:
    """Does the work again; each capture costs `bytes_each`."""

    def __init__(self, bytes_each: int = 0) -> None:
        self.replays: list[int] = []
        self.captured = 0
        self._bytes_each = bytes_each

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        self.captured += 1
        number = self.captured

        def replay() -> None:
            self.replays.append(number)
            work()

        return replay

    def free_bytes(self) -> int:
        return 1000 - self.captured * self._bytes_each


def graphed(engine: InferenceEngine, recorder: Any, sizes: list[int], **options: int) -> Any:
    """`engine` with graphs of `sizes`."""
    settings = {"context": engine.context_length, "budget_bytes": 1000, **options}
    runner: Any = engine._runner
    made = GraphedModel(runner, recorder, sizes, **settings)
    made.bind(engine.cache)
    engine._runner = made
    return made


@pytest.fixture
def engine() -> InferenceEngine:
    return engine_run_by("triton", tiny_llama(num_hidden_layers=1), kv_cache_tokens=256)


@pytest.mark.parametrize("overlap", [True, False])
def test_tokens_are_the_same(engine: InferenceEngine, overlap: bool) -> None:
    """Three sequences in a graph of four, prefill as it comes, and the last one in a graph of 1."""
    asked = prompts(20, 3, 9)
    expected = [reference(tiny_llama(num_hidden_layers=1), p, 6) for p in asked]
    recorder = Replayer()
    graphed(engine, recorder, [1, 4])
    reserved = engine.cache.keys[0][16:].clone()
    scheduler = OnlineScheduler(engine, overlap=overlap)
    outputs = run_together(scheduler, asked, [greedy(count) for count in (4, 5, 6)])
    for own, ids, count in zip(outputs, expected, (4, 5, 6), strict=True):
        assert tokens(own) == ids[:count]
    assert recorder.replays == [1, 1, 1, 1, 2], "the larger one was captured first"
    changed = (engine.cache.keys[0][16:] != reserved).any(dim=-1).any(dim=-1)
    written = sum(len(p) for p in asked) + 3 + 4 + 5
    assert int(changed.sum()) == written, "padding was written outside of the reserved block"


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "cohere2"])
def test_on_a_gpu_graphs_say_what_transformers_says(architecture: str) -> None:
    """Captured and replayed by CUDA: our decoder, one with two kinds of layers, transformers'."""
    asked = prompts(20, 3, 9)
    model = build(architecture, num_hidden_layers=2)
    expected = [reference(model, p, 6) for p in asked]
    engine = InferenceEngine.from_model(model.cuda(), kv_cache_tokens=256)
    assert isinstance(engine._runner, GraphedModel)
    assert answers(engine, asked, 6) == expected


def test_steps_of_last_tokens_run_as_graphs(engine: InferenceEngine) -> None:
    runner = graphed(engine, Replayer(), [1, 2, 4])
    sessions = [engine.new_session(p) for p in prompts(5, 5, 5, 5, 5)]
    for session in sessions:
        session.blocks, session.computed = engine.cache.pool.allocate(1), 4
    one = [Chunk(session, 1) for session in sessions]
    assert [runner.fitting(one[:count]) for count in range(1, 6)] == [1, 2, 4, 4, None]
    sessions[1].computed = 3
    not_last = Chunk(sessions[1], 1)
    assert runner.fitting([one[0], not_last]) is None, "a chunk of one token that is not the last"
    assert runner.fitting([Chunk(sessions[1], 2)]) is None


def test_sizes_grow_by_a_small_share() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = batch_sizes(512)
    assert sizes[-1] == 512
    assert all(b - a <= max(a / 4, 8) for a, b in itertools.pairwise(sizes))


def test_capturing_ends_with_its_budget(
    engine: InferenceEngine, caplog: pytest.LogCaptureFixture
) -> None:
    runner = graphed(engine, Replayer(bytes_each=10), [1, 2, 4, 8], budget_bytes=15)
    assert runner.sizes == [4, 8]
    assert "batches below 4 are padded" in caplog.text


def test_progress_is_shown(engine: InferenceEngine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roseinfer"):
        graphed(engine, Replayer(), [1, 2])
    assert "capturing CUDA graph 2 of 2: batch of 1" in caplog.text


class Failing(Replayer):
    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")


class Stale(Replayer):
    """Replays what a first pass over nothing gave, as a model that looks at values would."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Replayer(), None),
        (Failing(), "not permitted when stream is capturing"),
        (Stale(), "replayed logits differ"),
    ],
)
def test_graphs_are_tried_before_they_are_used(
    engine: InferenceEngine,
    recorder: Any,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, packed = engine.model, engine._runner
    layers, expected = find_layers(model), Reference(model)
    trial = GraphedModel(packed, recorder, [2], context=64, budget_bytes=1000)  # type: ignore[arg-type]
    kept = trusted(trial, packed, expected, layers)
    assert (kept is packed) == (reason is None)
    assert reason is None or reason in caplog.text
