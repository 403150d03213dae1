"""Greedy output equals transformers' own generate, token for token, in any batch."""

import functools
from typing import Any

import pytest

from roseinfer import InferenceEngine
from tests.roseinfer.models import (
    CASES,
    answers,
    build,
    check_left_in_order,
    engine_run_by,
    prompts,
    reference,
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
    check_left_in_order(engine)


Case = tuple[InferenceEngine, list[list[int]]]


@pytest.mark.parametrize(
    ("max_batch_size", "max_step_tokens"),
    [(1, 512), (32, 512), (4, 7)],
    ids=["single", "batched", "chunked prefill"],
)
def test_prompts_together_give_the_tokens_of_each_alone(
    case: Case, max_batch_size: int, max_step_tokens: int
) -> None:
    engine, expected = case
    limits = {"max_batch_size": max_batch_size, "max_step_tokens": max_step_tokens}
    assert answers(engine, PROMPTS, COUNT, **limits) == expected


def test_the_models_do_not_repeat_one_token(case: Case) -> None:
    """A model that repeats one token would agree with anything."""
    _, expected = case
    assert len({token for ids in expected for token in ids}) >= 4
