"""Steps that begin before the host has the tokens of the last: the same tokens, and no waiting."""

from collections.abc import Sequence
from typing import Any

import pytest

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, native
from roseinfer.native import library
from roseinfer.sampling.sampler import SampledTokens
from tests.roseinfer.models import (
    byte_tokenizer,
    check_left_in_order,
    drain,
    greedy,
    prompts,
    run_together,
    tiny_llama,
)
from tests.roseinfer.sessions.test_resume import PARAMS, fields, with_stop

PROMPTS = prompts(30, 5, 18)


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    with pytest.MonkeyPatch.context() as patch:
        # The compiled decoder does not run ahead.
        patch.setattr(library, "load", lambda: library.Loaded(None, "a test"))
        return InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=2048)


def run(
    engine: InferenceEngine, params: Sequence[SamplingParams], *, overlap: bool
) -> list[list[tuple[object, ...]]]:
    scheduler = OnlineScheduler(engine, max_batch_size=3, max_step_tokens=16, overlap=overlap)
    outputs = run_together(scheduler, PROMPTS, params)
    check_left_in_order(engine)
    return [[fields(output) for output in own] for own in outputs]


@pytest.mark.parametrize("kind", sorted(PARAMS))
def test_what_comes_out_is_the_same(engine: InferenceEngine, kind: str) -> None:
    """Beside a greedy and a sampled request."""
    params = PARAMS[kind] if kind != "stopped" else with_stop(engine, PARAMS[kind])
    batch = [params, greedy(9), greedy(12, temperature=1.2, top_k=40, seed=3)]
    assert run(engine, batch, overlap=True) == run(engine, batch, overlap=False)


class Diary:
    """Notes when a step is handed to the device and when its results are waited for."""

    def __init__(self, engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.rows: list[int] = []
        forward, wait = engine.forward, SampledTokens.wait

        def launch(chunks: Any, after: Any = None) -> Any:
            self.events.append("launch")
            self.rows.append(len(chunks))
            return forward(chunks, after)

        def collect(sampled: SampledTokens) -> Any:
            self.events.append("wait")
            return wait(sampled)

        monkeypatch.setattr(engine, "forward", launch)
        monkeypatch.setattr(SampledTokens, "wait", collect)


def test_the_next_step_is_launched_before_the_last_is_waited_for(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary = Diary(engine, monkeypatch)
    scheduler = OnlineScheduler(engine, overlap=True)
    scheduler.add_request(PROMPTS[0], params=greedy(4))
    drain(scheduler)
    assert diary.events == ["launch", "launch", "wait", "launch", "wait", "launch", "wait", "wait"]


def test_a_length_that_is_reached_wastes_no_row_and_an_eos_wastes_one(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = run_one(engine, greedy(5))
    diary = Diary(engine, monkeypatch)
    run_one(engine, greedy(5))
    assert diary.rows == [1] * 5
    diary.rows.clear()
    ends = first[2]
    run_one(engine, greedy(5, stop_token_ids=(ends,)))
    assert diary.rows == [1] * (first.index(ends) + 2)


def run_one(engine: InferenceEngine, params: SamplingParams) -> list[list[int]]:
    scheduler = OnlineScheduler(engine, overlap=True)
    name = scheduler.add_request(PROMPTS[1], params=params)
    outputs = drain(scheduler)[name]
    assert engine.cache.pool.used == 0
    return [[i for output in outputs for i in output.token_ids]]


def test_alone_means_alone(engine: InferenceEngine) -> None:
    """What is under way lands first; then nobody else moves."""
    scheduler = OnlineScheduler(engine, overlap=True)
    one, other = (scheduler.add_request(p, params=greedy(6)) for p in PROMPTS[:2])
    scheduler.step()
    landed = scheduler.step(only=other)
    assert {output.request_id for output in landed} == {one, other}
    for _ in range(3):
        (output,) = scheduler.step(only=other)
        assert output.request_id == other
    scheduler.abort(one)
    assert [o.finish_reason for o in drain(scheduler)[other]][-1] == "length"


def test_aborted_with_its_token_on_the_way(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine, overlap=True)
    name = scheduler.add_request(PROMPTS[0], params=greedy(6))
    scheduler.step()
    scheduler.step()
    assert scheduler.abort(name)
    assert engine.cache.pool.used == 0
    assert scheduler.has_unfinished(), "the device still works for it"
    assert scheduler.step() == []
    assert not scheduler.has_unfinished()


@pytest.mark.skipif(not native.available(), reason="without a compiled decoder")
def test_a_runner_that_needs_every_token_is_not_overlapped() -> None:
    engine = InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=64)
    with pytest.raises(ConfigurationError, match="needs every token on the host"):
        OnlineScheduler(engine, overlap=True)
