"""What speculation brings, and what it costs where there is nothing to guess.

Models with random weights repeat nothing that means anything, so their texts are dictated: after
each forward pass the logit of the token that is to come is made the largest. Everything else is
computed as usual. The texts are those of the built-in model's generator. A trained model writes its
own.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.board import Board, at_least
from benchmarks.engine.contenders.ours import Ours, exactly
from benchmarks.engine.scale import Scale
from benchmarks.runner import Case, in_turn
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.execution.draft_head import Counts
from roseinfer.execution.engine_core import StepLogits
from roseinfer.sampling.sampler import SampledTokens
from roseinfer.sessions.session import Chunk, InferenceSession
from training.tale import story

PLAIN, SPECULATING = "roseinfer, one token a step", "roseinfer, speculation"
TRAINED = "roseinfer, with the drafts of its own head"
_BATCHES = (1, 4)
_OPENING = 48  # characters
_REPEATING, _OTHER = 1.8, 0.98  # targets
_DICTATED = 1e9


def by_head(right: float) -> str:
    return f"{right:.0%} of the head's drafts right"


_OWN_TARGETS = {by_head(0.6): 1.0, by_head(0.8): 1.5, by_head(0.9): 2.0}
_RIGHT = {by_head(right): right for right in (0.6, 0.8, 0.9)}


def editing(source: random.Random) -> tuple[str, str]:
    """A text, and the same with another name for its hero."""
    text = " ".join(story(source, name="Lily") for _ in range(2))
    return text, text.replace("Lily", "Mia")


def extraction(source: random.Random) -> tuple[str, str]:
    """A text, and every other of its sentences as they were."""
    text = " ".join(story(source) for _ in range(3))
    return text, ". ".join(text.split(". ")[::2])


def another_story(source: random.Random) -> tuple[str, str]:
    """A story, and one that has nothing to do with it."""
    return story(source), story(source)


Task = Callable[[random.Random], tuple[str, str]]
TASKS: dict[str, tuple[Task, float]] = {
    "editing": (editing, _REPEATING),
    "extraction": (extraction, _REPEATING),
    "another story": (another_story, _OTHER),
}


@dataclass
class Speculation(Case):
    """Only decode steps count: from the time when each request has a token."""

    title: str
    ours: Ours
    scale: Scale
    _schedulers: dict[str, OnlineScheduler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # For all rounds: they learn what steps cost, as in a service.
        for name in (PLAIN, SPECULATING):
            self._schedulers[name] = self.ours.scheduler(speculation=name == SPECULATING)

    def round(self, board: Board, turn: int) -> None:
        for task, (make, _) in TASKS.items():
            for batch in _BATCHES:
                pairs = [self._pair(make, f"{task}/{turn}/{n}") for n in range(batch)]
                for name in in_turn(list(self._schedulers), turn):
                    rate = decode_rate(self.ours.engine, self._schedulers[name], pairs)
                    board.add(name, {metric(task, batch): rate})

    def judge(self, board: Board) -> None:
        stats = self._schedulers[SPECULATING].stats()
        board.notes.append(f"{stats.accepted_tokens} of {stats.drafted_tokens} drafts were right")
        for task, (_, target) in TASKS.items():
            for batch in _BATCHES:
                what = metric(task, batch)
                rows = (what, SPECULATING), (what, PLAIN)
                board.check_ratio(f"{what}: with to without", *rows, at_least(target))

    def _pair(self, make: Task, seed: str) -> tuple[list[int], list[int]]:
        prompt, answer = make(random.Random(seed))  # noqa: S311 - a workload, no secret
        encode, most = self.ours.engine.encode, self.scale.dictated_tokens
        return encode(prompt), encode(answer)[:most]


def decode_rate(
    engine: InferenceEngine,
    scheduler: OnlineScheduler,
    pairs: Sequence[tuple[list[int], list[int]]],
    answers: dict[str, list[int]] | None = None,
) -> float:
    """Tokens a second of requests that generate dictated answers, from when each has a token.
    `answers` gets those by request."""
    answers = {} if answers is None else answers
    for prompt, answer in pairs:
        answers[scheduler.add_request(prompt, params=exactly(len(answer)))] = answer
    made = dict.fromkeys(answers, 0)

    def step() -> None:
        for output in scheduler.step():
            made[output.request_id] += len(output.token_ids)

    with dictating(engine, answers):
        while not all(made.values()):
            step()
        before, began = sum(made.values()), time.perf_counter()
        while scheduler.has_unfinished():
            step()
    return (sum(made.values()) - before) / (time.perf_counter() - began)


def metric(task: str, batch: int) -> str:
    return f"{task}, {batch} at once: tokens/s"


@dataclass
class OwnDrafts(Case):
    """A model's own head, by how many of its drafts are right. Its weights are random, so these are
    dictated, too: it computes what it would, and then is told."""

    title: str
    engine: InferenceEngine
    scale: Scale
    _schedulers: dict[str, OnlineScheduler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._schedulers[PLAIN] = OnlineScheduler(self.engine, keep_finished=False)
        for name in _RIGHT:
            self._schedulers[name] = OnlineScheduler(
                self.engine, keep_finished=False, speculation=True
            )

    def round(self, board: Board, turn: int) -> None:
        for batch in _BATCHES:
            source = random.Random(f"{turn}/{batch}")  # noqa: S311 - a workload, no secret
            texts = [source.sample(range(100, 20_000), 192) for _ in range(batch)]
            pairs = [(text[:32], text[32 : 32 + self.scale.dictated_tokens]) for text in texts]
            for name in in_turn(list(self._schedulers), turn):
                with guessing(self.engine, _RIGHT.get(name, 0.0), source) as answers:
                    rate = decode_rate(self.engine, self._schedulers[name], pairs, answers)
                board.add(name, {metric("own drafts", batch): rate})

    def judge(self, board: Board) -> None:
        for name, target in _OWN_TARGETS.items():
            for batch in _BATCHES:
                what = metric("own drafts", batch)
                rows = (what, name), (what, PLAIN)
                board.check_ratio(f"{what}: {name}", *rows, at_least(target))


@dataclass
class TrainedDrafts(Case):
    """A model whose own head is trained, in stories that it writes to their ends.

    `engines` have the model with its head, and without: that one guesses from what stands in the
    text alone, or, as the base of all ratios, makes a token a step.
    """

    title: str
    engines: Mapping[str, InferenceEngine]
    scale: Scale
    _schedulers: dict[tuple[str, int], OnlineScheduler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, engine in self.engines.items():
            for batch in _BATCHES:
                self._schedulers[name, batch] = OnlineScheduler(
                    engine, batch, keep_finished=False, speculation=name != PLAIN
                )

    def round(self, board: Board, turn: int) -> None:
        source = random.Random(turn)  # noqa: S311 - a workload, no secret
        openings = [story(source)[:_OPENING] for _ in range(self.scale.stories)]
        for batch in _BATCHES:
            for name in in_turn(list(self.engines), turn):
                board.add(name, {metric("stories", batch): self._rate(name, batch, openings)})

    def _rate(self, name: str, batch: int, openings: Sequence[str]) -> float:
        """Tokens a second of whole answers, so many at once."""
        scheduler, encode = self._schedulers[name, batch], self.engines[name].encode
        params = SamplingParams(max_new_tokens=self.scale.story_tokens)
        made, began = 0, time.perf_counter()
        for text in openings:
            scheduler.add_request(encode(text), params=params)
        while scheduler.has_unfinished():
            made += sum(len(output.token_ids) for output in scheduler.step())
        return made / (time.perf_counter() - began)

    def judge(self, board: Board) -> None:
        for batch in _BATCHES:
            stats = self._schedulers[TRAINED, batch].stats()
            right = f"{stats.accepted_tokens} of {stats.drafted_tokens} drafts were right"
            board.notes.append(f"{batch} at once: {right}")
            what = metric("stories", batch)
            rows = (what, TRAINED), (what, PLAIN)
            board.check_ratio(f"{what}: {TRAINED}", *rows, at_least(2.0))


@contextmanager
def guessing(
    engine: InferenceEngine, right: float, source: random.Random
) -> Iterator[dict[str, list[int]]]:
    """Each draft of the head's is the token of the answer with the probability `right`. The answers
    are put into what this gives."""
    head, answers = engine.draft_head, dict[str, list[int]]()
    if head is None:
        raise RuntimeError("the model has no head of its own")
    draft = head.draft

    def guess(counts: Counts) -> dict[InferenceSession, tuple[int, ...]]:
        made = draft(counts)
        for session, drafts in made.items():
            rest = answers[session.request_id][session.num_generated :]
            told = zip(drafts, rest, strict=False)
            made[session] = tuple(token if source.random() < right else 50 for _, token in told)
        return made

    head.draft = guess  # type: ignore[method-assign]
    try:
        yield answers
    finally:
        head.draft = draft  # type: ignore[method-assign]


@contextmanager
def dictating(engine: InferenceEngine, answers: dict[str, list[int]]) -> Iterator[None]:
    """Greedy requests generate their `answers`, which they must not outlast."""
    forward = engine.forward

    def dictated(chunks: Sequence[Chunk], after: SampledTokens | None = None) -> StepLogits:
        logits, row = forward(chunks, after), 0
        for chunk in logits.chunks:
            session = chunk.session
            place = session.num_generated
            for token in answers[session.request_id][place : place + 1 + len(chunk.drafts)]:
                logits.values[row, token] = _DICTATED
                row += 1
        return logits

    engine.forward = dictated  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.forward = forward  # type: ignore[method-assign]
