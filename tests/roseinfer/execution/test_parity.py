"""Greedy output equals transformers' own generate, token for token, in any batch."""

import functools
from collections.abc import Iterator
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


Case = tuple[InferenceEngine, list[list[int]]]


@functools.lru_cache(maxsize=1)
def expected_of(architecture: str) -> list[list[int]]:
    model: Any = build(architecture)
    return [reference(model, prompt, COUNT) for prompt in PROMPTS]


@pytest.fixture(scope="module", params=sorted(CASES), ids="-".join)
def prepared(request: pytest.FixtureRequest) -> Case:
    architecture, run_by = request.param
    engine = engine_run_by(run_by, build(architecture), kv_cache_tokens=2048)
    return engine, expected_of(architecture)


@pytest.fixture
def case(prepared: Case) -> Iterator[Case]:
    engine, _ = prepared
    yield prepared
    check_left_in_order(engine)


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
    assert len({token for ids in expected for token in ids}) >= 4, "they would agree with anything"
