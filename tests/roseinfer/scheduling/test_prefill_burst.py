"""Prompts that come together, on a machine whose clock the test makes."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.scheduling.prefill_pace import MAX_BURST_S
from tests.roseinfer.clocks import Machine
from tests.roseinfer.models import forget_prefixes, greedy, long_engine, prompts

BURST, PROMPT_TOKENS = 16, 60
LONG_PAUSE_S = 0.1  # four steps of all of the burst
_NUMBERS = itertools.count(2)


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return long_engine()


@dataclass
class Served:
    """When each token of each request came, in the machine's seconds."""

    scheduler: OnlineScheduler
    machine: Machine
    times: dict[str, list[float]] = field(default_factory=dict)

    def come(self, *lengths: int, new_tokens: int = 20) -> list[str]:
        """No two prompts begin alike: nothing of them is in the cache."""
        asked = [[next(_NUMBERS) % 60, *prompt[1:]] for prompt in prompts(*lengths)]
        names = [self.scheduler.add_request(prompt, params=greedy(new_tokens)) for prompt in asked]
        self.times |= {name: [] for name in names}
        return names

    def step(self) -> None:
        for output in self.scheduler.step():
            self.times[output.request_id] += [self.machine.now] * len(output.token_ids)

    def to_the_end(self) -> None:
        while self.scheduler.has_unfinished():
            self.step()

    def first_tokens(self, names: Sequence[str]) -> list[float]:
        return [self.times[name][0] for name in names]

    def pauses(self, names: Sequence[str]) -> list[int]:
        """How many long ones each of them had between two tokens."""
        return [
            sum(after - before > LONG_PAUSE_S for before, after in itertools.pairwise(times))
            for times in (self.times[name] for name in names)
        ]


def served(
    engine: InferenceEngine,
    machine: Machine,
    itl_target_ms: float | None = None,
    *,
    max_batch_size: int = 32,
    max_step_tokens: int = 1024,
) -> Served:
    """A scheduler that knows what its machine's steps cost."""
    forget_prefixes(engine)
    scheduler = OnlineScheduler(
        engine, max_batch_size, max_step_tokens, itl_target_ms=itl_target_ms, clock=machine.clock
    )
    warm = Served(scheduler, machine)
    warm.come(200, 30, new_tokens=8)
    warm.to_the_end()
    machine.steps.clear()
    return Served(scheduler, machine)


def test_a_burst_is_computed_in_halves_and_only_the_first_half_waits_once(
    engine: InferenceEngine, machine: Machine
) -> None:
    whole_s = Machine.prompt_seconds(BURST * PROMPT_TOKENS)
    run = served(engine, machine)
    began = machine.now
    names = run.come(*[PROMPT_TOKENS] * BURST)
    run.to_the_end()
    first = [when - began for when in run.first_tokens(names)]
    assert max(first[: BURST // 2]) < 0.6 * whole_s
    assert max(first) < 1.1 * whole_s
    assert run.pauses(names) == [1] * (BURST // 2) + [0] * (BURST // 2)
    assert [len(step) for step in machine.steps[:3]] == [BURST // 2, BURST // 2, BURST]


@pytest.mark.parametrize(
    ("count", "prompt_tokens", "slowdown"),
    [(24, 60, 2.0), (12, 200, 1.0)],
    ids=["more than a second", "more than a step's tokens"],
)
def test_the_prompts_of_a_half_have_their_first_tokens_in_the_same_step(
    engine: InferenceEngine, machine: Machine, count: int, prompt_tokens: int, slowdown: float
) -> None:
    """Though a half takes two steps: no more requests wait for the rest than where it takes one."""
    machine.slowdown = slowdown
    run = served(engine, machine)
    names = run.come(*[prompt_tokens] * count)
    run.to_the_end()
    assert [sum(step) < count * prompt_tokens // 2 for step in machine.steps[:4]] == [True] * 4
    assert run.pauses(names) == [1] * (count // 2) + [0] * (count // 2)
    assert len(set(run.first_tokens(names))) == 2


def test_long_prompts_of_a_burst_end_one_after_another(
    engine: InferenceEngine, machine: Machine
) -> None:
    """A step does not hold two of them, so the first would wait long for the others."""
    run = served(engine, machine)
    names = run.come(*[600] * 4)
    run.to_the_end()
    firsts = run.first_tokens(names)
    assert firsts == sorted(set(firsts))


def test_a_step_of_few_tokens_computes_a_burst(engine: InferenceEngine, machine: Machine) -> None:
    """It has no room for the little that is left of each prompt: some end before the others."""
    run = served(engine, machine, max_batch_size=15, max_step_tokens=15)
    names = run.come(*[PROMPT_TOKENS] * 15)
    run.to_the_end()
    assert all(len(run.times[name]) == 20 for name in names)
    assert max(map(sum, machine.steps)) == 15


def test_prompts_that_come_meanwhile_belong_to_the_burst(
    engine: InferenceEngine, machine: Machine
) -> None:
    """As over a network: the first one is alone."""
    run = served(engine, machine)
    names = run.come(PROMPT_TOKENS)
    run.step()
    names += run.come(*[PROMPT_TOKENS] * (BURST - 1))
    run.to_the_end()
    assert [len(step) for step in machine.steps[:4]] == [1, BURST // 2 - 1, BURST // 2, BURST]
    assert sum(run.pauses(names)) == BURST // 2


def test_those_who_decode_already_get_a_token_in_each_step_of_a_burst(
    engine: InferenceEngine, machine: Machine
) -> None:
    run = served(engine, machine)
    old = run.come(5, 5, new_tokens=60)
    for _ in range(4):
        run.step()
    before = len(machine.steps)
    names = run.come(*[PROMPT_TOKENS] * BURST)
    run.to_the_end()
    assert machine.steps[before][:2] == machine.steps[before + 1][:2] == [1, 1]
    assert run.pauses(old) == [2, 2]
    assert sum(run.pauses(names)) == BURST // 2


def test_where_as_many_decode_prompts_are_paced(engine: InferenceEngine, machine: Machine) -> None:
    run = served(engine, machine)
    old = run.come(*[5] * BURST, new_tokens=60)
    for _ in range(4):
        run.step()
    names = run.come(*[PROMPT_TOKENS] * BURST)
    run.to_the_end()
    assert sum(run.pauses(old)) + sum(run.pauses(names)) == 0


def test_a_burst_that_would_take_too_long_is_paced(
    engine: InferenceEngine, machine: Machine
) -> None:
    """While it would: what is left at the end may be a burst."""
    run = served(engine, machine)
    run.come(*[5] * 4, new_tokens=100)
    for _ in range(4):
        run.step()
    before = len(machine.steps)
    run.come(*[400] * 9)
    run.step()
    assert Machine.prompt_seconds(sum(machine.steps[before])) < 0.1


def test_a_target_in_milliseconds_knows_no_bursts(
    engine: InferenceEngine, machine: Machine
) -> None:
    run = served(engine, machine, itl_target_ms=80)
    names = run.come(*[PROMPT_TOKENS] * BURST)
    run.to_the_end()
    assert sum(run.pauses(names)) == 0


def test_who_waits_for_a_burst_goes_on_when_it_is_aborted(
    engine: InferenceEngine, machine: Machine
) -> None:
    run = served(engine, machine)
    names = run.come(*[PROMPT_TOKENS] * BURST)
    run.step()
    for name in names[BURST // 2 :]:
        run.scheduler.abort(name)
    run.to_the_end()
    assert sum(run.pauses(names)) == 0
    assert all(len(run.times[name]) == 20 for name in names[: BURST // 2])


def test_bursts_upon_bursts_hold_nobody_for_long(engine: InferenceEngine, machine: Machine) -> None:
    """With prompts coming all the time, who has begun gets a token in every few steps."""
    run = served(engine, machine)
    names = run.come(*[PROMPT_TOKENS] * 4, new_tokens=40)
    for _ in range(12):
        run.step()
        names += run.come(PROMPT_TOKENS, PROMPT_TOKENS, new_tokens=40)
    run.to_the_end()
    waits = [
        after - before for name in names for before, after in itertools.pairwise(run.times[name])
    ]
    assert max(waits) < MAX_BURST_S
