"""Greedy output equals transformers' own generate, token for token, in any batch."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from roseinfer import InferenceEngine, OnlineScheduler
from tests.roseinfer.models import (
    CASES,
    build,
    drain,
    engine_run_by,
    greedy,
    prompts,
    reference,
    run_alone,
    tokens,
)

COUNT = 10
PROMPTS = prompts(3, 20, 9, 41)


@functools.lru_cache(maxsize=1)
def prepared(architecture: str, run_by: str) -> tuple[InferenceEngine, list[list[int]]]:
    model: Any = build(architecture)
    expected = [reference(model, prompt, COUNT) for prompt in PROMPTS]
    engine = engine_run_by(run_by, model, kv_cache_tokens=2048)
    return engine, expected


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Any:
    engine, expected = prepared(*request.param)
    yield engine, expected
    engine.cache.pool.check_integrity()
    assert engine.cache.pool.used == 0
    engine.cache.pool.release(engine.cache.pool.allocate(engine.cache.pool.available))


Case = tuple[InferenceEngine, list[list[int]]]


def test_single(case: Case) -> None:
    engine, expected = case
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        assert tokens(run_alone(engine, prompt, greedy(COUNT))) == ids


def test_batched(case: Case) -> None:
    engine, expected = case
    scheduler = OnlineScheduler(engine)
    names = [scheduler.add_request(p, params=greedy(COUNT)) for p in PROMPTS]
    outputs = drain(scheduler)
    assert [tokens(outputs[name]) for name in names] == expected


def test_chunked_prefill(case: Case) -> None:
    engine, expected = case
    scheduler = OnlineScheduler(engine, max_batch_size=4, max_step_tokens=7)
    names = [scheduler.add_request(p, params=greedy(COUNT)) for p in PROMPTS]
    outputs = drain(scheduler)
    assert [tokens(outputs[name]) for name in names] == expected


def test_late_joining(case: Case) -> None:
    engine, expected = case
    scheduler = OnlineScheduler(engine, max_step_tokens=32)
    names, outputs = [], {}
    for prompt in PROMPTS:
        names.append(scheduler.add_request(prompt, params=greedy(COUNT)))
        for output in [*scheduler.step(), *scheduler.step()]:
            outputs.setdefault(output.request_id, []).append(output)
    for name, more in drain(scheduler).items():
        outputs.setdefault(name, []).extend(more)
    assert [tokens(outputs[name]) for name in names] == expected


def test_the_models_say_something(case: Case) -> None:
    """A model that repeats one token would agree with anything."""
    _, expected = case
    assert len({token for ids in expected for token in ids}) >= 4
