"""Prompts that arrive beside requests that decode, on a machine whose clock the test makes."""

import math
import statistics
from dataclasses import dataclass, field

import pytest

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine, OfflineScheduler, OnlineScheduler
from roseinfer.scheduling.prefill_pace import MIN_PREFILL_TOKENS, PrefillPace, StepCosts, StepSize
from tests.roseinfer.clocks import ErraticClock, Machine
from tests.roseinfer.models import (
    drain,
    forget_prefixes,
    greedy,
    long_engine,
    prompts,
    run_alone,
    tokens,
)

DECODING = 8
LONG = 1_024
BETWEEN_S = 2.0


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return long_engine()


@dataclass
class Course:
    """What befell the requests of one run, in the machine's seconds."""

    intervals: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def p99(self) -> float:
        return sorted(self.intervals)[math.ceil(len(self.intervals) * 0.99) - 1]


def serve(
    engine: InferenceEngine,
    machine: Machine,
    itl_target_ms: float | None,
    *,
    arrivals: int = 4,
    new_tokens: int = 400,
) -> Course:
    """Eight requests decode; `arrivals` prompts of 1,024 tokens come, one each two seconds."""
    forget_prefixes(engine)
    scheduler = OnlineScheduler(engine, itl_target_ms=itl_target_ms, clock=machine.clock)
    asked = prompts(*[16] * DECODING, *[LONG] * arrivals)
    for prompt in asked[:DECODING]:
        scheduler.add_request(prompt, params=greedy(new_tokens))
    began, course = machine.now, Course()
    due = [(began + BETWEEN_S * (n + 0.5), prompt) for n, prompt in enumerate(asked[DECODING:])]
    arrived: dict[str, float] = {}
    last: dict[str, float] = {}
    while scheduler.has_unfinished():
        while due and due[0][0] <= machine.now:
            when, prompt = due.pop(0)
            arrived[scheduler.add_request(prompt, params=greedy(1))] = when
        for output in scheduler.step():
            name = output.request_id
            if name in arrived:
                course.first_tokens.append(machine.now - arrived[name])
            elif name in last:
                course.intervals.append(machine.now - last[name])
            last[name] = machine.now
    assert not due, "all decoding ended before the last prompt came"
    course.seconds = machine.now - began
    return course


def test_who_decodes_waits_at_most_four_times_as_long_when_prompts_arrive(
    engine: InferenceEngine, machine: Machine
) -> None:
    """Throughput stays, and a prompt's first token comes at most twice as late."""
    alone = serve(engine, machine, None, arrivals=0)
    before = serve(engine, machine, 0)
    after = serve(engine, machine, None)
    usual = statistics.median(alone.intervals)
    assert before.p99 > 10 * usual
    assert after.p99 <= 4 * usual
    assert after.seconds <= 1.05 * before.seconds
    assert max(after.first_tokens) <= 2 * max(before.first_tokens)


def test_a_target_is_kept_once_costs_are_known(engine: InferenceEngine, machine: Machine) -> None:
    course = serve(engine, machine, 80)
    late = course.intervals[len(course.intervals) // 3 :]
    assert max(late) <= 0.08 * 1.1
    assert max(late) > 0.06, "it leaves room unused"


def test_a_target_of_zero_is_none(engine: InferenceEngine, machine: Machine) -> None:
    serve(engine, machine, 0, arrivals=1)
    assert max(map(max, machine.steps)) == 512 - DECODING


def test_no_target_starves_a_prompt(engine: InferenceEngine, machine: Machine) -> None:
    """Each step beside it gives it its least tokens, and as much time as decoding."""
    before = serve(engine, machine, 0)
    machine.steps.clear()
    course = serve(engine, machine, 0.001)
    chunks = [max(step) for step in machine.steps if max(step) > 1][1:]
    assert len(course.first_tokens) == 4
    assert sum(count < MIN_PREFILL_TOKENS for count in chunks) <= 4, (
        "but for the end of each prompt"
    )
    assert max(course.first_tokens) <= 2.2 * max(before.first_tokens)


def test_with_nobody_decoding_steps_are_full(engine: InferenceEngine, machine: Machine) -> None:
    scheduler = OnlineScheduler(engine, itl_target_ms=1, clock=machine.clock)
    for prompt in prompts(700, 500):
        scheduler.add_request(prompt, params=greedy(1))
    drain(scheduler)
    assert [sum(step) for step in machine.steps[:2]] == [512, 512]


@pytest.mark.parametrize(("slowdown", "expected"), [(1, [700]), (4, [512, 188])])
def test_a_full_step_is_large_only_where_it_is_short(
    engine: InferenceEngine, machine: Machine, slowdown: float, expected: list[int]
) -> None:
    """Who comes next, or cancels, does not wait for seconds."""
    machine.slowdown = slowdown
    scheduler = OnlineScheduler(engine, max_step_tokens=1024, clock=machine.clock)
    for prompt in prompts(300, 20):
        scheduler.add_request(prompt, params=greedy(8))
    drain(scheduler)
    machine.steps.clear()
    scheduler.add_request([5] * 700, params=greedy(1))
    drain(scheduler)
    assert [sum(step) for step in machine.steps] == expected


def test_a_machine_that_slows_down_changes_chunks_only_for_a_target_in_milliseconds(
    engine: InferenceEngine, machine: Machine
) -> None:
    def typical_chunk(itl_target_ms: float | None) -> float:
        machine.steps.clear()
        serve(engine, machine, itl_target_ms)
        return statistics.median(max(step) for step in machine.steps if max(step) > 1)

    usual, in_time = typical_chunk(None), typical_chunk(80)
    machine.slowdown = 2.5
    assert typical_chunk(None) == pytest.approx(usual, rel=0.2)
    assert typical_chunk(80) < in_time / 2


@pytest.mark.parametrize("slowdown", [1.7, 3.0])
def test_after_a_slow_step_the_next_has_so_few_prompt_tokens_that_it_is_little_longer(
    engine: InferenceEngine, slowdown: float
) -> None:
    def seconds(size: StepSize) -> float:
        return 0.008 + 0.0002 * size.rows + 1e-9 * size.pairs

    costs = StepCosts()
    for rows in range(8, 64):
        size = StepSize(rows, 1_000 * (rows % 7))
        costs.record(size, seconds(size), prefill=rows > 8)
    pace = PrefillPace(costs, None)
    decoding = [engine.new_session(prompt) for prompt in prompts(*[16] * DECODING)]
    arriving = [engine.new_session(prompts(LONG)[0])]

    def step() -> StepSize:
        chunks = pace.chunks(arriving, decoding, budget=512)
        return StepSize(DECODING + sum(chunk.count for chunk in chunks), 0)

    usual = step()
    costs.record(usual, slowdown * seconds(usual), prefill=True)
    slow = step()
    decode_s = slowdown * seconds(StepSize(DECODING, 0))
    assert slowdown * seconds(slow) <= max(1.05 * seconds(usual), 1.5 * decode_s)
    assert slow.rows - DECODING >= MIN_PREFILL_TOKENS
    costs.record(slow, seconds(slow), prefill=True)
    assert step() == usual


def test_many_prompts_at_once_do_not_wait_for_a_few_that_decode(
    engine: InferenceEngine, machine: Machine
) -> None:
    """32 requests come together: the batch is full soon, so throughput stays."""

    def seconds(itl_target_ms: float | None) -> float:
        forget_prefixes(engine)
        scheduler = OnlineScheduler(engine, itl_target_ms=itl_target_ms, clock=machine.clock)
        began = machine.now
        for number, prompt in enumerate(prompts(*[150] * 32)):
            scheduler.add_request(prompt, params=greedy(16 + 3 * number))
        drain(scheduler)
        return machine.now - began

    without = seconds(0)
    assert seconds(None) <= 1.05 * without


def test_a_batch_job_has_no_target(engine: InferenceEngine, machine: Machine) -> None:
    """Nobody waits for a token, and what it computes together depends on no clock."""
    scheduler = OfflineScheduler(engine, clock=machine.clock)
    scheduler.add_request(prompts(5)[0], params=greedy(20))
    scheduler.step()
    scheduler.add_request(prompts(1, 400)[1], params=greedy(2))
    scheduler.run()
    assert machine.steps[1] == [1, 400]


@pytest.mark.parametrize("target", [-1.0, math.nan, math.inf])
def test_an_impossible_target_is_refused(engine: InferenceEngine, target: float) -> None:
    with pytest.raises(ConfigurationError, match="itl_target_ms"):
        OnlineScheduler(engine, itl_target_ms=target)


@pytest.mark.parametrize("target", [None, 0.001, 5_000.0], ids=["usual", "least", "long"])
def test_no_clock_changes_a_token(engine: InferenceEngine, target: float | None) -> None:
    """Whatever steps take, and so however prompts are cut; resumed requests are among them."""
    asked = prompts(300, 40, 9, 200, 77, 3)
    params = [greedy(24, temperature=1.2 * (n % 2), seed=n) for n in range(len(asked))]
    expected = [
        tokens(run_alone(engine, prompt, own)) for prompt, own in zip(asked, params, strict=True)
    ]
    for seed in range(4):
        forget_prefixes(engine)
        scheduler = OnlineScheduler(engine, itl_target_ms=target, clock=ErraticClock(seed))
        names, outputs = [], dict[str, list[int]]()
        for number, (prompt, own) in enumerate(zip(asked, params, strict=True)):
            known = expected[number][: 7 * (number % 3)]  # what a lost worker had logged
            names.append(scheduler.add_request(prompt, params=own, generated_ids=known))
            outputs[names[-1]] = list(known)
            for output in [*scheduler.step(), *scheduler.step()]:
                outputs[output.request_id] += output.token_ids
        for name, more in drain(scheduler).items():
            outputs[name] += tokens(more)
        assert [outputs[name] for name in names] == expected
