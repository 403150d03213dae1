"""The costs of steps, from steps that took what a test says."""

import random
from typing import Any

import pytest

from roseinfer.scheduling.prefill_pace import StepCosts, StepSize

DECODE = StepSize(8, 2_000)
MIXED = StepSize(40, 12_000)


def seconds(size: StepSize) -> float:
    return 0.006 + 0.001 * size.rows + 1e-6 * size.pairs


def measured(decodes: int = 20, prefills: int = 20) -> StepCosts:
    costs, draw = StepCosts(), random.Random(0)
    for _ in range(decodes):
        size = StepSize(draw.randint(1, 16), draw.randint(100, 20_000))
        costs.record(size, seconds(size), prefill=False)
    for _ in range(prefills):
        size = StepSize(draw.randint(20, 200), draw.randint(1_000, 100_000))
        costs.record(size, seconds(size), prefill=True)
    return costs


def near(value: float) -> Any:
    return pytest.approx(value, rel=0.05)


def test_nothing_is_known_before_the_first_step() -> None:
    assert StepCosts().now().of(DECODE) == 0


def test_costs_that_are_linear_are_found() -> None:
    costs = measured()
    for size in (DECODE, MIXED, StepSize(500, 400_000)):
        assert costs.now().of(size) == near(seconds(size))


def test_one_step_says_what_that_step_costs() -> None:
    costs = StepCosts()
    costs.record(MIXED, 0.05, prefill=True)
    assert costs.now().of(MIXED) == near(0.05)


@pytest.mark.parametrize("computed", [0, 300, 1_000])
def test_tokens_within_are_as_many_as_cost_that(computed: int) -> None:
    costs = measured().now()
    count = costs.tokens_within(0.05, computed)
    assert costs.of_tokens(count, computed) <= 0.05 < costs.of_tokens(count + 1, computed)


def test_keys_that_are_there_make_tokens_dearer() -> None:
    costs = measured().now()
    assert costs.tokens_within(0.05, 2_000) < 0.6 * costs.tokens_within(0.05, 0)


@pytest.mark.parametrize("allowed", [0.0, -1.0])
def test_no_seconds_are_no_tokens(allowed: float) -> None:
    assert measured().now().tokens_within(allowed, 0) == 0


def test_a_minority_of_slow_steps_moves_nothing() -> None:
    """Of each five steps one has waited for another program."""
    costs = StepCosts()
    for number in range(64):
        for size, prefill in ((DECODE, False), (MIXED, True)):
            late = 20.0 if number % 5 == 0 else 1.0
            costs.record(size, late * seconds(size), prefill=prefill)
    for size in (DECODE, MIXED):
        assert costs.now().of(size) == near(seconds(size))


def test_two_hiccups_change_nothing_and_a_busy_machine_is_believed_after_three_steps() -> None:
    costs = measured()
    before = costs.now().of(MIXED)
    for _ in range(2):
        costs.record(DECODE, 10 * seconds(DECODE), prefill=False)
    assert costs.now().of(MIXED) == near(before)
    costs.record(DECODE, 10 * seconds(DECODE), prefill=False)
    assert costs.now().of(MIXED) == near(10 * before)


def test_the_next_step_is_as_slow_as_the_last_one_and_none_is_faster_than_lately() -> None:
    costs = measured()
    usual = seconds(MIXED)
    costs.record(DECODE, 3 * seconds(DECODE), prefill=False)
    assert costs.next_step().of(MIXED) == near(3 * usual)
    costs.record(DECODE, seconds(DECODE) / 3, prefill=False)
    assert costs.next_step().of(MIXED) == near(usual)


def test_usual_costs_are_without_the_slowdown() -> None:
    costs = measured()
    for _ in range(5):
        costs.record(DECODE, 10 * seconds(DECODE), prefill=False)
    assert costs.now().of(MIXED) == near(10 * seconds(MIXED))
    assert costs.usual().of(MIXED) == near(seconds(MIXED))


def test_a_machine_that_is_calm_again_is_believed_too() -> None:
    costs = measured()
    for slowdown in (4.0, 1.0):
        for _ in range(40):
            for size, prefill in ((DECODE, False), (MIXED, True)):
                costs.record(size, slowdown * seconds(size), prefill=prefill)
        assert costs.now().of(MIXED) == near(slowdown * seconds(MIXED))


def test_an_hour_of_decoding_does_not_displace_what_prefill_costs() -> None:
    costs = measured()
    for number in range(1_000):
        size = StepSize(8, 2_000 + 8 * (number % 50))
        costs.record(size, seconds(size), prefill=False)
    assert costs.now().of(MIXED) == near(seconds(MIXED))


def test_no_cost_is_negative() -> None:
    """Larger steps were faster: nothing may pay for itself."""
    costs = StepCosts()
    for rows in range(1, 60):
        costs.record(StepSize(rows, 100 * rows), 0.1 / rows, prefill=rows > 16)
    now = costs.now()
    assert now.of_tokens(1_000, 1_000) >= 0
    assert now.of(StepSize(0, 0)) >= 0
    assert now.tokens_within(1.0, 0) > 0
