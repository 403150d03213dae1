"""Layers with a state, or with latents: the tokens of transformers' own generate, wherever a
sequence is cut."""

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from roseinfer import InferenceEngine, OnlineScheduler, native
from roseinfer.model.transformers_model import PackedModel
from roseinfer.scheduling.speculation import Speculation
from roseinfer.sessions.prompt_lookup import PromptLookup
from tests.roseinfer.models import (
    COMPILED,
    COMPILED_STATEFUL,
    STATEFUL,
    answers,
    build,
    check_left_in_order,
    engine_run_by,
    forget_prefixes,
    greedy,
    prompts,
    reference,
    run_alone,
    run_together,
    tokens,
)

COUNT = 64
BLOCK = 4
PROMPTS = prompts(3, 20, 9, 41)


Case = tuple[Any, InferenceEngine, list[list[int]]]
"""A model, an engine of the same, and its own greedy tokens behind each prompt."""


@functools.lru_cache(maxsize=1)
def own_tokens(architecture: str) -> tuple[Any, list[list[int]]]:
    own = build(architecture)
    return own, [reference(own, prompt, COUNT) for prompt in PROMPTS]


def prepared(architecture: str, run_by: str) -> Case:
    """`run_by`: or "chosen", by what the engine chooses itself."""
    own, expected = own_tokens(architecture)
    options = {"kv_cache_tokens": 2**15, "block_size": BLOCK, "max_context": 128}
    if run_by != "chosen":
        return own, engine_run_by(run_by, build(architecture), **options), expected
    engine = InferenceEngine.from_model(build(architecture), **options)
    compiled = architecture in COMPILED_STATEFUL | COMPILED and native.available()
    assert engine.decoder_description.startswith("compiled") == compiled
    return own, engine, expected


CASES = [
    *((name, "chosen") for name in STATEFUL),
    *((name, "transformers") for name in COMPILED_STATEFUL),
    ("glm4_moe_lite", "chosen"),
]


@pytest.fixture(scope="module", params=sorted(CASES), ids="-".join)
def prepared_case(request: pytest.FixtureRequest) -> Case:
    return prepared(*request.param)


@pytest.fixture
def case(prepared_case: Case) -> Iterator[Case]:
    own, engine, expected = prepared_case
    states = engine.cache.pool.states
    interval = states.interval
    yield own, engine, expected
    states.interval = interval
    check_left_in_order(engine)


@pytest.mark.parametrize(("max_batch_size", "max_step_tokens"), [(32, 512), (4, 7), (3, 3)])
def test_in_any_batch_and_chunk(case: Case, max_batch_size: int, max_step_tokens: int) -> None:
    _, engine, expected = case
    limits = {"max_batch_size": max_batch_size, "max_step_tokens": max_step_tokens}
    assert answers(engine, PROMPTS, COUNT, **limits) == expected
    assert len({token for ids in expected for token in ids}) >= 4, "they would agree with anything"


def test_behind_a_prefix_that_ends_at_any_border(case: Case) -> None:
    # given a state for each block of a long prompt
    own, engine, _ = case
    engine.cache.pool.states.interval = BLOCK
    prompt, other = PROMPTS[3], PROMPTS[1][:5]
    run_alone(engine, prompt, greedy(1))
    for border in range(BLOCK, len(prompt), BLOCK):
        # when another prompt begins alike
        asked = prompt[:border] + other
        session = engine.new_session(asked, params=greedy(5))
        scheduler = OnlineScheduler(engine)
        name = scheduler.add_session(session)
        ids = tokens([output for output in run(scheduler) if output.request_id == name])
        # then it goes on from there
        assert session.cached_tokens == border
        assert ids == reference(own, asked, 5)


def run(scheduler: OnlineScheduler) -> list[Any]:
    outputs = []
    while scheduler.has_unfinished():
        outputs += scheduler.step()
    return outputs


def test_a_conversation_goes_on_behind_its_last_answer(case: Case) -> None:
    # given
    _, engine, expected = case
    run_alone(engine, PROMPTS[1], greedy(30))
    # when its next turn comes
    session = engine.new_session([*PROMPTS[1], *expected[1][:30], 5], params=greedy(1))
    scheduler = OnlineScheduler(engine)
    scheduler.add_session(session)
    run(scheduler)
    # then what was said is not computed again, but for the rest of the last block
    assert scheduler.stats().prefix_hit_tokens == 48


def test_after_preemptions(case: Case) -> None:
    # given a cache that cannot hold all of them at once
    _, engine, expected = case
    pool = engine.cache.pool
    held = pool.allocate(pool.available - 28)
    scheduler = OnlineScheduler(engine, 4, 16)
    # when
    outputs = run_together(scheduler, PROMPTS, [greedy(24)] * len(PROMPTS))
    pool.release(held)
    # then
    assert [tokens(own) for own in outputs] == [ids[:24] for ids in expected]
    assert scheduler.stats().preemptions > 0


def test_with_fewer_states_than_requests(case: Case) -> None:
    """They wait for each other, and what was kept is given up."""
    _, engine, expected = case
    states = engine.cache.pool.states
    if not states.total:
        pytest.skip("it has no layers with a state")
    held = [states.take() for _ in range(states.total - 2)]
    scheduler = OnlineScheduler(engine, 4, 16)
    outputs = run_together(scheduler, PROMPTS, [greedy(12)] * len(PROMPTS))
    states.give_back(held)
    assert [tokens(own) for own in outputs] == [ids[:12] for ids in expected]


def test_after_a_takeover(case: Case) -> None:
    _, engine, expected = case
    for done in (1, 30, COUNT - 1):
        forget_prefixes(engine)
        outputs = run_alone(engine, PROMPTS[3], greedy(min(done + 9, COUNT)), expected[3][:done])
        assert tokens(outputs) == expected[3][done : done + 9]


def test_with_drafts_right_and_wrong(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # given drafts of which each fourth is wrong, and a decoder that may have some
    _, engine, expected = case

    def draft(_: PromptLookup, known: list[int], count: int) -> tuple[int, ...]:
        text = next(p + ids for p, ids in zip(PROMPTS, expected, strict=True) if known[:3] == p[:3])
        right = text[len(known) : len(known) + count]
        places = range(len(known), len(known) + count)
        return tuple(token + (place % 4 == 0) for token, place in zip(right, places, strict=True))

    monkeypatch.setattr(PackedModel, "batch_invariant", True)
    monkeypatch.setattr(PromptLookup, "update", lambda *_: True)
    monkeypatch.setattr(PromptLookup, "acceptance", lambda _, count, **__: [0.9] * count)
    monkeypatch.setattr(PromptLookup, "draft", draft)
    monkeypatch.setattr(
        Speculation,
        "_draft_counts",
        lambda _, drafting, *__: Counter({s: min(3, s.tokens_left - 1) for s, *_ in drafting}),
    )
    scheduler = OnlineScheduler(engine, 4, 32, speculation=True)
    # when
    outputs = run_together(scheduler, PROMPTS, [greedy(24)] * len(PROMPTS))
    # then
    assert [tokens(own) for own in outputs] == [ids[:24] for ids in expected]
    assert scheduler.stats().drafted_tokens > scheduler.stats().accepted_tokens > 24


def test_steps_that_are_launched_ahead(case: Case) -> None:
    _, engine, expected = case
    if not engine.runs_ahead:
        pytest.skip("its runner needs every token on the host")
    scheduler = OnlineScheduler(engine, 4, 7, overlap=True)
    outputs = run_together(scheduler, PROMPTS, [greedy(12)] * len(PROMPTS))
    assert [tokens(own) for own in outputs] == [ids[:12] for ids in expected]
