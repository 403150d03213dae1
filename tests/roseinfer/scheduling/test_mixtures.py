"""Whatever shares the engine with a request, and however often it loses its place: its own tokens.

Every mixture of prompts cut anyhow, batches, shared prefixes, preemption, steps alone, aborts, and
crashes after which a request goes on with the tokens it has.
"""

import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from tests.roseinfer.clocks import ErraticClock
from tests.roseinfer.models import (
    CASES,
    build,
    engine_run_by,
    forget_prefixes,
    greedy,
    prompts,
    reference,
    run_alone,
    tokens,
)

Params = Callable[[int, int], SamplingParams]

COUNT = 10
BLOCK_SIZE = 4
_LONG, _OTHER = prompts(38, 23)
PROMPTS = [
    _LONG,
    _LONG[:9],
    _LONG[:21] + _OTHER[:6],
    _LONG[:21] + _OTHER[6:9],
    _OTHER,
    _OTHER[:14] + _LONG[:3],
]
# The longest request must fit: 38 + 10 tokens.
ROOMS = (12, 14, 18)
FATES = ("crash", "crash", "abort", "", "", "", "crash", "")
EVENTS = {"preempted", "prefix tokens found", "resumed", "aborted"}
MAX_STEPS = 1000  # a mixture takes about a hundred
few_examples = settings(max_examples=2, derandomize=True, database=None)


@dataclass(frozen=True)
class Request:
    """`fate` is what befalls it `after` so many of its `length` tokens; "" is nothing."""

    prompt: int
    length: int
    arrival: int
    fate: str
    after: int
    pause: int


@dataclass(frozen=True)
class Mixture:
    """In every `alone_every`th step (0: never) the youngest request is stepped alone.

    What steps seem to take decides how prompts are cut; `clock_seed` says it.
    """

    requests: tuple[Request, ...]
    room: int
    max_batch_size: int
    max_step_tokens: int
    alone_every: int
    clock_seed: int


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Eight requests: each prompt at least once, three that crash, one that is aborted."""
    order = draw(st.permutations([*range(len(PROMPTS)), 0, 2]))
    fates = draw(st.permutations(FATES))
    return Mixture(
        tuple(draw(requests(prompt, fate)) for prompt, fate in zip(order, fates, strict=True)),
        room=draw(st.sampled_from(ROOMS)),
        max_batch_size=draw(st.integers(3, 8)),
        max_step_tokens=draw(st.sampled_from((11, 5, 64))),
        alone_every=draw(st.sampled_from((0, 3))),
        clock_seed=draw(st.integers(0, 99)),
    )


@st.composite
def requests(draw: st.DrawFn, prompt: int, fate: str) -> Request:
    length = draw(st.integers(COUNT // 2, COUNT))
    arrival, after = draw(st.integers(0, 12)), draw(st.integers(0, length - 1))
    return Request(prompt, length, arrival, fate, after, pause=draw(st.integers(0, 4)))


class Play:
    """One mixture on one engine, with no more of its KV cache than the mixture has room."""

    def __init__(
        self,
        engine: InferenceEngine,
        mixture: Mixture,
        params: Params,
        *,
        overlap: bool = False,
    ) -> None:
        """`params` gives a request's parameters for its prompt's number and its length."""
        self.pool = engine.cache.pool
        forget_prefixes(engine)
        self.held = self.pool.allocate(self.pool.total - mixture.room)
        self.mixture, self.params, self.overlap = mixture, params, overlap
        limits = mixture.max_batch_size, mixture.max_step_tokens
        clock = ErraticClock(mixture.clock_seed)
        self.scheduler = OnlineScheduler(engine, *limits, overlap=overlap, clock=clock)
        self.ids: list[list[int]] = [[] for _ in mixture.requests]
        self.due = {index: request.arrival for index, request in enumerate(mixture.requests)}
        self.fates = {i: request.fate for i, request in enumerate(mixture.requests) if request.fate}
        self.running: dict[str, int] = {}
        self.ended: list[int] = []
        self.events: Counter[str] = Counter()

    def run(self, expected: Sequence[Sequence[int]]) -> Counter[str]:
        """What happened. Fails unless every request that was not aborted has its own tokens."""
        try:
            for step in itertools.count():
                assert step < MAX_STEPS, "requests wait for each other"
                self._arrive(step)
                self._step(step)
                self._befall(step)
                if not self.due and not self.running:
                    break
        finally:
            for name in self.running:
                self.scheduler.abort(name)
            self.pool.release(self.held)
        self._check(expected)
        return self.events

    def _arrive(self, step: int) -> None:
        for index in [index for index, due in self.due.items() if due == step]:
            del self.due[index]
            request = self.mixture.requests[index]
            name = self.scheduler.add_request(
                PROMPTS[request.prompt],
                params=self.params(request.prompt, request.length),
                generated_ids=self.ids[index],
            )
            self.running[name] = index
            self.events["resumed"] += bool(self.ids[index])

    def _step(self, step: int) -> None:
        every = self.mixture.alone_every
        youngest = list(self.running)[-1] if self.running else None
        only = youngest if every and step % every == 0 else None
        for output in self.scheduler.step(only=only):
            assert only is None or self.overlap or output.request_id == only
            index = self.running[output.request_id]
            assert output.index == len(self.ids[index])
            self.ids[index] += output.token_ids
            if output.finish_reason is not None:
                assert output.finish_reason == "length"
                self.ended.append(self.running.pop(output.request_id))
        self.pool.check_integrity()

    def _befall(self, step: int) -> None:
        for name, index in list(self.running.items()):
            request = self.mixture.requests[index]
            if index in self.fates and len(self.ids[index]) >= request.after:
                assert self.scheduler.abort(name)
                del self.running[name]
                if self.fates.pop(index) == "crash":
                    self.due[index] = step + 1 + request.pause
                else:
                    self.events["aborted"] += 1

    def _check(self, expected: Sequence[Sequence[int]]) -> None:
        for index, request in enumerate(self.mixture.requests):
            whole = expected[request.prompt][: request.length]
            assert self.ids[index] == whole[: len(self.ids[index])]
            assert (index in self.ended) == (request.fate != "abort")
            assert index not in self.ended or self.ids[index] == whole
        assert self.pool.used == 0
        stats = self.scheduler.stats()
        self.events["preempted"] += stats.preemptions
        self.events["prefix tokens found"] += stats.prefix_hit_tokens


def play_some(
    engine: InferenceEngine,
    params: Params,
    expected: Sequence[Sequence[int]],
    name: str,
    *,
    overlap: bool = False,
) -> None:
    """Mixtures that depend on `name` alone. Fails unless they hold everything they should."""
    events: Counter[str] = Counter()

    @seed(zlib.crc32(name.encode()))
    @few_examples
    @given(mixtures())
    def play(mixture: Mixture) -> None:
        events.update(Play(engine, mixture, params, overlap=overlap).run(expected))

    play()
    assert {event for event in EVENTS if events[event]} == EVENTS


@functools.cache
def references(architecture: str) -> list[list[int]]:
    model = build(architecture)
    return [reference(model, prompt, COUNT) for prompt in PROMPTS]


def prepared(architecture: str, run_by: str) -> InferenceEngine:
    model = build(architecture)
    return engine_run_by(run_by, model, kv_cache_tokens=256, block_size=BLOCK_SIZE)


# Transformers' code runs ahead of its tokens, if it is asked to.
OVERLAPPING = [("llama", "transformers", True), ("cohere2", "transformers", True)]


@pytest.mark.parametrize(
    ("architecture", "run_by", "overlap"), [*((*case, False) for case in CASES), *OVERLAPPING]
)
def test_greedy_tokens_are_those_of_transformers(
    architecture: str, run_by: str, overlap: bool
) -> None:
    play_some(
        prepared(architecture, run_by),
        lambda _, length: greedy(length),
        references(architecture),
        f"{architecture}-{run_by}",
        overlap=overlap,
    )


@pytest.mark.parametrize(
    ("architecture", "run_by", "overlap"),
    [
        *((*case, False) for case in CASES if case == ("llama", "compiled")),
        ("cohere2", "transformers", False),
        ("llama", "transformers", True),
    ],
)
def test_sampled_tokens_are_those_drawn_alone(
    architecture: str, run_by: str, overlap: bool
) -> None:
    engine = prepared(architecture, run_by)

    def params(prompt: int, length: int) -> SamplingParams:
        return greedy(length, temperature=1.5, top_p=0.95, seed=prompt)

    alone = [
        tokens(run_alone(engine, prompt, params(number, COUNT)))
        for number, prompt in enumerate(PROMPTS)
    ]
    assert alone != references(architecture)
    play_some(engine, params, alone, f"sampled {architecture}-{run_by}", overlap=overlap)
