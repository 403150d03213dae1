"""Penalties, bias and bans: what is drawn follows the distribution that they define."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

from rose.errors import InvalidParameter
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from roseinfer.logits_processors.batch import process_logits
from roseinfer.logits_processors.processor import LogitsProcessor
from roseinfer.sessions.session import SamplingRequest
from tests.roseinfer.models import (
    WAYS,
    build,
    drawing,
    greedy,
    prompts,
    reference,
    run_alone,
    run_together,
    sample,
    text,
    tiny_llama,
    tokens,
)

VOCAB = 12
PROMPT, OUTPUT = [1, 1, 2, 9], [2, 3, 3, 3, 5]
LOGITS = [0.5, 1.9, -0.7, 1.2, -1.6, 0.0, 0.9, -0.2, 1.1, 0.7, -2.0, 0.3]
ENDS = [6, 11]


def row_of(
    position: int | None = None,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = OUTPUT,
    **params: Any,
) -> SamplingRequest:
    wanted = SamplingParams(**params)
    logits_processor = LogitsProcessor(wanted, prompt, ends=ENDS)
    for token_id in output:
        logits_processor.add(token_id)
    return SamplingRequest(wanted, len(output) if position is None else position, logits_processor)


def exact_logits(position: int, **params: Any) -> list[float]:
    """By the definitions, one token at a time, in plain double precision."""
    p, counts, logits = SamplingParams(**params), Counter(OUTPUT), []
    for token_id, logit in enumerate(LOGITS):
        if token_id in PROMPT or counts[token_id]:
            logit = logit * p.repetition_penalty if logit < 0 else logit / p.repetition_penalty
        logit -= p.frequency_penalty * counts[token_id]
        logit -= p.presence_penalty * (counts[token_id] > 0)
        logit += dict(p.logit_bias).get(token_id, 0.0)
        banned = token_id in ENDS and position < p.min_new_tokens
        if size := p.no_repeat_ngram_size:
            seen = [*PROMPT, *OUTPUT, token_id]
            ngrams = [seen[i : i + size] for i in range(len(seen) - size + 1)]
            banned = banned or ngrams[-1] in ngrams[:-1]
        logits.append(-math.inf if banned else logit)
    return logits


def exact_distribution(position: int, **params: Any) -> list[float]:
    """Adjusted logits through temperature, top-k, top-p and min-p, token by token."""
    p = SamplingParams(**params)
    weights = [math.exp(logit / p.temperature) for logit in exact_logits(position, **params)]
    ranked = sorted(range(VOCAB), key=lambda i: -weights[i])[: p.top_k]
    total = sum(weights[i] for i in ranked)
    kept, mass = [], 0.0
    for token_id in ranked:
        if mass < p.top_p:
            kept.append(token_id)
        mass += weights[token_id] / total
    best = weights[kept[0]]
    kept = [i for i in kept if weights[i] >= p.min_p * best]
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(VOCAB)]


PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
DRAWS = 10_000
LATE = {"min_new_tokens": DRAWS, "max_new_tokens": DRAWS}
BIAS = {"logit_bias": ((0, 1.5), (3, 2.0), (8, -100.0))}
CASES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "repetition that encourages": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": -0.6},
    "bias": BIAS,
    "min_new_tokens": LATE,
    "all": {**PENALTIES, **BIAS, **LATE},
    "all and top-k": {**PENALTIES, **BIAS, **LATE, "top_k": 5},
    "all and top-p": {**PENALTIES, **BIAS, "top_p": 0.8},
    "all and min-p": {**PENALTIES, **BIAS, "min_p": 0.2},
    "all and n-grams": {**PENALTIES, **BIAS, "no_repeat_ngram_size": 1},
    "everything": {**PENALTIES, **BIAS, **LATE, "top_k": 8, "top_p": 0.9, "min_p": 0.1},
}
FILTERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_processed_logits_are_those_of_the_definitions(case: str) -> None:
    row = row_of(**CASES[case])
    assert row.logits_processor is not None
    ours = torch.tensor([LOGITS])
    process_logits(ours, [(row.logits_processor, row.position)])
    exact = torch.tensor([exact_logits(row.position, **CASES[case])])
    torch.testing.assert_close(ours, exact)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "case", [*FILTERS, *(case for case in CASES if "all" in case or "every" in case)]
)
def test_what_is_drawn_has_the_exact_distribution(case: str) -> None:
    """Chi-square, one seed, ten thousand positions."""
    params = {**(CASES | FILTERS)[case], "temperature": 0.8}
    error, degrees = chi_square(draw(**params, seed=11), exact_distribution(0, **params))
    assert error < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


def draw(**params: Any) -> list[int]:
    """A token for each position, all with the same tokens so far."""
    shared = row_of(**params)
    processor = shared.logits_processor if shared.params.needs_logits_processor else None
    rows = [SamplingRequest(shared.params, position, processor) for position in range(DRAWS)]
    return sample(torch.tensor([LOGITS]).expand(DRAWS, -1), rows)


def chi_square(drawn: list[int], distribution: list[float]) -> tuple[float, int]:
    """The statistic, and its degrees of freedom; what is impossible must not have been drawn."""
    expected = DRAWS * torch.tensor(distribution, dtype=torch.float64)
    seen = torch.bincount(torch.tensor(drawn), minlength=VOCAB).double()
    possible = expected > 0
    assert seen[~possible].sum() == 0
    error = (seen - expected)[possible] ** 2 / expected[possible]
    return float(error.sum()), int(possible.sum()) - 1


penalised = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.integers(1, 14),
        "top_p": st.floats(0.3, 1),
        "min_p": st.floats(0, 0.99),
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-9, 9), max_size=3).map(
            lambda biases: tuple(biases.items())
        ),
        "min_new_tokens": st.integers(0, 8),
    },
)
ids = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@settings(max_examples=80, derandomize=True)
@given(mates=st.lists(st.tuples(penalised, ids, ids), max_size=5), own=penalised, at=ids)
def test_a_row_does_not_depend_on_its_mates(
    mates: list[tuple[dict[str, Any], list[int], list[int]]], own: dict[str, Any], at: list[int]
) -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(1))
    row = row_of(output=at, seed=3, **own)
    plain = SamplingRequest(SamplingParams(temperature=0.9, seed=8), 4)
    company = [row_of(None, prompt, out, seed=9, **mate) for mate, prompt, out in mates]
    before = logits.clone()
    beside = torch.cat([logits[5:], logits[: 1 + len(mates)]])
    for way in WAYS:
        with drawing(way):
            alone = [*sample(logits[5:], [plain]), *sample(logits[:1], [row])]
            assert sample(beside, [plain, row, *company])[:2] == alone
    assert torch.equal(logits, before)


# Through the engine, against transformers


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
def test_parity_with_transformers(architecture: str) -> None:
    # given: an end that the model would choose early
    model, prompt, count = build(architecture), prompts(20)[0], 24
    penalised = reference(model, prompt, count, repetition_penalty=1.4)
    assert penalised != reference(model, prompt, count)
    eos = penalised[3]
    least = {"min_new_tokens": 9, "eos_token_id": eos}
    expected = reference(model, prompt, count, repetition_penalty=1.4, **least)
    model.generation_config.eos_token_id = eos
    model.config.eos_token_id = eos
    engine = InferenceEngine.from_model(model, kv_cache_tokens=512)
    # when
    params = SamplingParams(max_new_tokens=count, repetition_penalty=1.4)
    early = run_alone(engine, prompt, params)
    late = run_alone(engine, prompt, params.model_copy(update={"min_new_tokens": 9}))
    # then
    assert tokens(early) == penalised[: penalised.index(eos) + 1]
    assert tokens(late) == expected
    assert len(expected) > 9


# N-grams


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(0, 3), min_size=1, max_size=30)),
        min_size=1,
        max_size=3,
    ),
    prompt_length=st.integers(1, 30),
)
def test_repeated_ngrams_are_banned_as_transformers_does(
    rows: list[tuple[int, list[int]]], prompt_length: int
) -> None:
    # given
    processors = [
        row_of(
            prompt=ids[:prompt_length], output=ids[prompt_length:], no_repeat_ngram_size=size
        ).logits_processor
        for size, ids in rows
    ]
    ours = torch.zeros(len(rows), VOCAB)
    # when
    process_logits(ours, [(processor, 0) for processor in processors if processor is not None])
    # then
    for row, (size, ids) in zip(ours, rows, strict=True):
        theirs = NoRepeatNGramLogitsProcessor(size)(torch.tensor([ids]), torch.zeros(1, VOCAB))
        assert row.tolist() == theirs[0].tolist()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_greedy_without_repeated_ngrams_agrees_with_transformers(architecture: str) -> None:
    # given: one prompt for each size, in one batch
    model, count, sizes = build(architecture), 30, (1, 2, 3, 5)
    asked = [prompt * 3 for prompt in prompts(9, 4, 12, 7)]
    expected = [
        reference(model, prompt, count, no_repeat_ngram_size=size)
        for prompt, size in zip(asked, sizes, strict=True)
    ]
    assert expected != [reference(model, prompt, count) for prompt in asked]
    engine = InferenceEngine.from_model(model, kv_cache_tokens=1024)
    scheduler = OnlineScheduler(engine, max_batch_size=3, max_step_tokens=16)
    # when
    params = [greedy(count, no_repeat_ngram_size=size) for size in sizes]
    outputs = run_together(scheduler, asked, params)
    # then
    assert [tokens(own) for own in outputs] == expected


def test_a_grammar_that_must_repeat_goes_before_the_ban(engine: InferenceEngine) -> None:
    params = SamplingParams(regex="(ab){9}", no_repeat_ngram_size=2)
    assert text(run_alone(engine, prompts(9)[0], params)) == "ab" * 9
    free = SamplingParams(regex="[ab]{4}", no_repeat_ngram_size=1, temperature=1.0, seed=1)
    assert len(set(tokens(run_alone(engine, prompts(9)[0], free))[:2])) == 2


# Ends


@pytest.fixture(scope="module")
def eager_to_end() -> InferenceEngine:
    """A model for which EOS (257) and 7 are the likeliest tokens at any time."""
    return InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=512)


def test_nothing_ends_a_request_before_min_new_tokens(eager_to_end: InferenceEngine) -> None:
    likely = ((257, 100.0), (7, 60.0))
    for least in (0, 1, 5):
        for stops, reason in (((), "eos"), ((7, 257), "eos")):
            params = SamplingParams(
                max_new_tokens=9, min_new_tokens=least, logit_bias=likely, stop_token_ids=stops
            )
            out = run_alone(eager_to_end, prompts(9)[0], params)
            assert len(tokens(out)) == least + 1
            assert out[-1].finish_reason == reason
            assert (7 in tokens(out)) is (not stops and least > 0)


def test_stop_strings_are_looked_for_after_min_new_tokens(engine: InferenceEngine) -> None:
    # given
    prompt = prompts(30)[0]
    pieces = [
        output.text for output in run_alone(engine, prompt, greedy(14, temperature=1.5, seed=6))
    ]
    early = next(i for i, piece in enumerate(pieces) if piece.strip())
    stop = pieces[early]
    # when
    cut = run_alone(engine, prompt, greedy(14, temperature=1.5, seed=6, stop=(stop,)))
    late = run_alone(
        engine, prompt, greedy(14, temperature=1.5, seed=6, stop=(stop,), min_new_tokens=early + 1)
    )
    # then
    assert (len(cut), cut[-1].finish_reason) == (early + 1, "stop")
    assert len(late) > early + 1
    assert stop in text(late)
    rest = "".join(pieces[early + 1 :])
    expected = "".join(pieces[: early + 1]) + rest.partition(stop)[0]
    assert text(late) == expected


def test_a_bias_for_a_token_that_is_none_is_refused(engine: InferenceEngine) -> None:
    with pytest.raises(InvalidParameter, match="logit_bias holds the token id 300"):
        engine.new_session([1], params=SamplingParams(logit_bias=((300, 1.0),)))


def test_where_everything_is_banned_nothing_is(either_way: None) -> None:
    """A text longer than its vocabulary, in which no token may come twice."""
    processor = LogitsProcessor(SamplingParams(no_repeat_ngram_size=1), range(VOCAB))
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = 1.0
    params = SamplingParams(temperature=0.0)
    assert sample(logits, [SamplingRequest(params, 0, processor)]) == [7]


def test_the_least_repetition_penalty_keeps_logits_finite() -> None:
    # given
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0, 5.0]])
    for penalty in (5e-324, 1e-45, 1e-39, 1e-30):
        params = SamplingParams(repetition_penalty=penalty)
        processed = logits.clone()
        # when
        process_logits(processed, [(LogitsProcessor(params, [0, 1, 2, 3]), 0)])
        # then: the likeliest of those that came
        assert processed.isfinite().all()
        assert int(processed.argmax()) == 1
