"""Speculation: the tokens that come one by one, and sooner where texts repeat."""

import random
from collections.abc import Sequence

import pytest
import torch

from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, native
from roseinfer.scheduling.speculation import MAX_DRAFTS
from roseinfer.sessions.session import Chunk
from tests.roseinfer.clocks import ErraticClock, Machine
from tests.roseinfer.models import (
    byte_tokenizer,
    check_left_in_order,
    drain,
    engine_run_by,
    greedy,
    run_alone,
    run_together,
    text,
    texts,
    tiny_llama,
    tokens,
)
from tests.roseinfer.sessions.test_resume import PARAMS

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled decoder")

REQUESTS = 1_000
Request = tuple[list[int], SamplingParams, list[int]]
"""A prompt, its parameters, and what another worker has already generated."""


def repeating_llama(**changes: int) -> torch.nn.Module:
    """It looks mostly at its last token, so its texts run in circles."""
    model = tiny_llama(**changes)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.0005
    return model


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine.from_model(repeating_llama(), byte_tokenizer(), kv_cache_tokens=288)


def mixed_requests() -> list[Request]:
    """Of all kinds: greedy and sampled, penalties, grammars, stop strings, log-probabilities."""
    source = random.Random(19)
    kinds = [{**params.model_dump(), "stop": ("ab",)} for params in PARAMS.values()]
    kinds += [kinds[0] | greedy(1).model_dump()] * len(kinds)  # half of them, for they repeat most
    requests = []
    for seed in range(REQUESTS):
        prompt = [source.randrange(3, 120) for _ in range(source.randrange(1, 16))]
        params = dict(source.choice(kinds), seed=seed)
        if params["temperature"]:
            params["temperature"] = source.choice([0.2, 0.6, 1.5])
        params["max_new_tokens"] = max(params["min_new_tokens"], source.randrange(1, 60))
        requests.append((prompt * source.randrange(1, 4), SamplingParams(**params), list[int]()))
    return requests


def run(
    scheduler: OnlineScheduler, requests: Sequence[Request]
) -> list[tuple[list[int], str, object]]:
    """What each request brought: ids, text, how it ended, its log-probabilities to the bit, and the
    text of each token."""
    names = [
        scheduler.add_request(prompt, params=params, generated_ids=done)
        for prompt, params, done in requests
    ]
    outputs = drain(scheduler)
    check_left_in_order(scheduler.engine)
    brought = []
    for own in (outputs[name] for name in names):
        logprobs = [logprob for output in own for logprob in output.logprobs or ()]
        end = (own[-1].finish_reason, own[-1].error, logprobs, texts(own))
        brought.append((tokens(own), text(own), end))
    return brought


def test_a_thousand_mixed_requests_get_the_same_tokens(
    engine: InferenceEngine, machine: Machine
) -> None:
    """With another batch size, and a cache that is too small for all."""
    # given what they get one token a step
    requests = mixed_requests()
    plain = OnlineScheduler(engine, 8, 64)
    expected = run(plain, requests)
    # when they run with speculation
    speculating = OnlineScheduler(engine, 12, 96, speculation=True, clock=machine.clock)
    # then it is the same, though a good part was drafted, and some of the drafts were wrong
    assert run(speculating, requests) == expected
    stats = speculating.stats()
    assert stats.generated_tokens == plain.stats().generated_tokens
    assert stats.accepted_tokens > stats.generated_tokens / 10
    assert stats.drafted_tokens > stats.accepted_tokens + 50
    assert stats.preemptions > 0
    # and when another worker goes on with what the first one has made of them
    source = random.Random(20)
    resumed, rests = [], []
    for (prompt, params, _), (ids, *_) in zip(requests[::4], expected[::4], strict=True):
        done = source.randrange(len(ids) + 1)
        resumed.append((prompt, params, ids[:done]))
        rests.append(ids[done:])
    resuming = OnlineScheduler(engine, 5, 64, speculation=True, clock=ErraticClock(1))
    assert [ids for ids, *_ in run(resuming, resumed)] == rests


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
def test_verified_logits_are_the_same_bits(weights: str) -> None:
    """Of all drafts, right or wrong, behind a context of several blocks."""
    quantized = weights if weights.startswith("int") else None
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    model = tiny_llama().to(dtype)
    engine = InferenceEngine.from_model(model, kv_cache_tokens=256, weights=quantized)
    pool = engine.cache.pool
    session = engine.new_session(list(range(5, 45)), params=greedy(30))
    session.blocks = pool.allocate(4)
    engine.forward([Chunk(session, 39)])
    session.computed = 39
    # given the logits behind the last token and behind drafts, computed in one step
    drafts = tuple(range(100, 100 + MAX_DRAFTS))
    verified = engine.forward([Chunk(session, 1 + MAX_DRAFTS, drafts)])
    assert len(verified.values) == 1 + MAX_DRAFTS
    # when the drafts are the session's tokens and are computed one by one
    for row, token in enumerate([*drafts, 0]):
        (logits,) = engine.forward([Chunk(session, 1)]).values
        # then the logits are the same
        assert torch.equal(logits, verified.values[row])
        session.computed += 1
        session.append(token)
    session.release_blocks(pool)


def test_text_that_repeats_takes_fewer_steps(engine: InferenceEngine, machine: Machine) -> None:
    # given a request that runs in circles
    (prompt, params) = [40, 41, 42], greedy(150)
    expected = tokens(run_alone(engine, prompt, params))
    before = machine.now
    scheduler = OnlineScheduler(engine, clock=machine.clock)
    run_together(scheduler, [prompt], [params])
    usual = machine.now - before
    # when it runs with speculation
    before = machine.now
    machine.steps.clear()
    scheduler = OnlineScheduler(engine, speculation=True, clock=machine.clock)
    (outputs,) = run_together(scheduler, [prompt], [params])
    # then it takes half of the time, and a step brings its tokens as one output
    assert tokens(outputs) == expected
    assert machine.now - before < usual / 2
    assert len(outputs) == len(machine.steps)
    assert max(len(output.token_ids) for output in outputs) > 4
    assert max(map(max, machine.steps[1:])) <= 1 + MAX_DRAFTS


def test_free_text_beside_a_lazy_grammar_takes_as_few_steps(
    engine: InferenceEngine, machine: Machine
) -> None:
    lazy = {"grammar": 'start: "<a>" /[b-z]+/ "."', "grammar_triggers": ("<a>",)}
    runs = []
    for more in ({}, lazy):
        machine.steps.clear()
        scheduler = OnlineScheduler(engine, speculation=True, clock=machine.clock)
        (outputs,) = run_together(
            scheduler, [[40, 41, 42]], [greedy(150, ignore_eos=False, **more)]
        )
        runs.append((tokens(outputs), list(machine.steps), scheduler.stats().accepted_tokens))

    assert runs[0] == runs[1]
    assert runs[1][2] > 75


def test_text_that_does_not_repeat_is_left_alone(engine: InferenceEngine, machine: Machine) -> None:
    # given requests whose tokens are drawn almost evenly from all
    asked = [[number, number + 50] for number in range(3, 11)]
    params = [greedy(120, temperature=50.0, seed=seed) for seed in range(8)]
    # when they run with speculation
    scheduler = OnlineScheduler(engine, speculation=True, clock=machine.clock)
    outputs = run_together(scheduler, asked, params)
    # then hardly any token was guessed
    assert sum(len(tokens(own)) for own in outputs) == 8 * 120
    assert scheduler.stats().drafted_tokens <= 8 * 120 / 100


def test_a_batch_that_keeps_the_processor_busy_gets_fewer_drafts(
    engine: InferenceEngine, machine: Machine
) -> None:
    def drafts_per_token(batch: int) -> float:
        scheduler = OnlineScheduler(engine, batch, speculation=True, clock=machine.clock)
        asked = [[40 + number, 41, 42] for number in range(batch)]
        run_together(scheduler, asked, [greedy(60)] * batch)
        stats = scheduler.stats()
        return stats.drafted_tokens / stats.generated_tokens

    assert drafts_per_token(1) > 0.5
    assert drafts_per_token(16) < drafts_per_token(1) * 0.9


def test_drafts_take_neither_the_place_of_tokens_nor_blocks_that_are_not_free() -> None:
    # given a cache that is just large enough for the request
    engine = InferenceEngine.from_model(repeating_llama(), block_size=4, kv_cache_tokens=64)
    machine = ErraticClock(3)
    scheduler = OnlineScheduler(engine, speculation=True, clock=machine)
    # when it runs to the end of its context
    name = scheduler.add_request([40, 41, 42], params=greedy(200))
    outputs = drain(scheduler)[name]
    # then it ends there
    assert len(tokens(outputs)) == engine.context_length - 3
    assert outputs[-1].finish_reason == "length"
    assert engine.cache.pool.used == 0


def test_a_decoder_whose_logits_depend_on_company_does_not_speculate() -> None:
    engine = engine_run_by("transformers", repeating_llama(), kv_cache_tokens=512)
    scheduler = OnlineScheduler(engine, speculation=True)
    run_together(scheduler, [[40, 41, 42]], [greedy(60)])
    assert scheduler.stats().drafted_tokens == 0


def test_it_is_off_unless_asked_for(engine: InferenceEngine) -> None:
    scheduler = OnlineScheduler(engine)
    (outputs,) = run_together(scheduler, [[40, 41, 42]], [greedy(60)])
    assert [len(output.token_ids) for output in outputs] == [1] * 60
    assert scheduler.stats().drafted_tokens == 0
