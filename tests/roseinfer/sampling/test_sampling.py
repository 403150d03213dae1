"""Sampling: filters, distribution, and independence of everything but the row."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from roseinfer import SamplingParams
from roseinfer.sampling import filters
from roseinfer.sampling.filters import filter_logits
from roseinfer.sampling.random_numbers import uniform
from roseinfer.sessions.session import NO_TOKEN, SamplingRequest
from tests.roseinfer.models import WAYS, drawing, sample


def random_logits(rows: int, vocab: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


knobs = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.05, 5),
        "top_k": st.none() | st.integers(1, 60),
        "top_p": st.floats(0.01, 1),
        "min_p": st.floats(0, 0.99),
    }
)


@settings(max_examples=60, derandomize=True)
@given(rows=st.lists(knobs, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_filters_agree_with_transformers(rows: list[dict[str, Any]], seed: int) -> None:
    logits = random_logits(len(rows), seed=seed).double()
    ours = filter_logits(logits, [SamplingParams(**row) for row in rows])
    for i, row in enumerate(rows):
        theirs = TemperatureLogitsWarper(row["temperature"])(None, logits[i : i + 1])
        if row["top_k"] is not None:
            theirs = TopKLogitsWarper(row["top_k"])(None, theirs)
        if row["top_p"] < 1:
            theirs = TopPLogitsWarper(row["top_p"])(None, theirs)
        if row["min_p"] > 0:
            theirs = MinPLogitsWarper(row["min_p"])(None, theirs)
        torch.testing.assert_close(ours[i : i + 1], theirs)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows=st.lists(knobs, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_the_largest_scores_decide_as_the_whole_vocabulary_does(
    rows: list[dict[str, Any]], seed: int
) -> None:
    """Also where more scores are alike than there is room for, which half precision brings."""
    logits = (random_logits(len(rows), vocab=400, seed=seed) / 4).round().double()
    params = [SamplingParams(**row) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_MAX_SHORT_TOP_K", 60)
        short = filter_logits(logits, params)
        patch.setattr(filters, "_MAX_SHORT_TOP_K", 0)
        assert torch.equal(short, filter_logits(logits, params))


def test_ties_stay_in_or_out_together() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 2.0, 1.0]]).double()
    for params, kept in (
        (SamplingParams(top_k=2), [1, 3, 4]),
        (SamplingParams(top_p=0.6), [1, 3, 4]),
        (SamplingParams(top_p=0.4), [1]),
        (SamplingParams(top_k=4), [0, 1, 2, 3, 4, 5]),
    ):
        filtered = filter_logits(logits, [params.model_copy(update={"temperature": 1.0})])
        assert filtered.isfinite().nonzero()[:, 1].tolist() == kept


def test_uniform_matches_splitmix64_in_plain_integers() -> None:
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    for seed, position in ((0, 0), (1, 5), (-9, 123), (2**63 - 1, 4000)):
        state = mix((seed + golden) & mask) + (position + 1) * golden & mask
        expected = (mix(state) >> 11) * 2.0**-53
        assert float(uniform(torch.tensor([seed]), torch.tensor([position]))) == expected


def drawn_each_way(logits: torch.Tensor, asked: list[SamplingRequest]) -> list[list[int]]:
    found = []
    for way in WAYS:
        with drawing(way):
            found.append(sample(logits, asked))
    return found


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    rows=st.lists(knobs, min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    rounded=st.booleans(),
    allowed=st.integers(0, 300),
)
def test_the_library_draws_what_torch_draws(
    rows: list[dict[str, Any]], seed: int, rounded: bool, allowed: int
) -> None:
    """With ties, and under a grammar that allows `allowed` of the ids, or none."""
    logits = random_logits(len(rows), vocab=300, seed=seed)
    if rounded:
        logits = logits.round()
    logits[:, allowed:] = -torch.inf
    asked = [SamplingRequest(SamplingParams(seed=seed, **row), seed) for row in rows]
    found = drawn_each_way(logits, asked)
    assert found[0] == found[1]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("knob", [{"top_k": 1}, {"top_p": 0.01}])
def test_minus_zero_and_zero_are_one_number(knob: dict[str, Any]) -> None:
    # given: two most likely tokens, of which only the sign of a zero differs
    logits = torch.tensor([[-0.0, 0.0, -9.0]]).expand(64, -1).contiguous()
    params = SamplingParams(temperature=1.0, seed=1, **knob)
    # when, then: a tie stays in
    assert set(sample(logits, [SamplingRequest(params, i) for i in range(64)])) == {0, 1}


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("first", [0, 5, 127, 128, 1023, 1024, 2047, 2500, 2999])
def test_a_greedy_row_takes_the_first_of_the_largest(first: int) -> None:
    # given: a vocabulary of several vectors and blocks, and ties behind the first
    logits = random_logits(2, vocab=3000).clamp(max=4.0)
    logits[1, :first] = -torch.inf
    logits[1, first] = 4.0
    ties = [int((logits[0] == 4.0).nonzero()[0]), first]
    # when, then
    rows = [SamplingRequest(SamplingParams(temperature=0.0), 0) for _ in ties]
    assert sample(logits, rows) == ties


@pytest.mark.usefixtures("either_way")
def test_seed_and_position_decide() -> None:
    logits = random_logits(1).expand(64, -1) * 0.1
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (1, 2)]
    first, second = (sample(logits, [SamplingRequest(p, i) for i in range(64)]) for p in params)
    again = sample(logits, [SamplingRequest(params[0], i) for i in range(64)])
    assert first == again
    assert first != second
    assert len(set(first)) > 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("largest", [float("nan"), float("inf"), float("-inf")])
def test_a_row_whose_largest_logit_is_not_finite_has_no_token(
    either_way: None, temperature: float, largest: float
) -> None:
    logits = random_logits(3, vocab=3000)
    params = SamplingParams(temperature=temperature, seed=1)
    rows = [SamplingRequest(params, 0)] * 3
    first, _, last = sample(logits, rows)
    logits[1] = largest
    assert sample(logits, rows) == [first, NO_TOKEN, last]


# What a float may be at its ends, and the neighbours of where float32 ends.
extreme_knobs = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([5e-324, 1e-310, 1e-45, 1e-39, 1e-38, 1e-30, 1e-3, 1.0, 1e6])
        | st.floats(0, 1_000_000),
        "top_k": st.sampled_from([None, 1, 2, 299, 300, 301, 2**63 - 1]),
        "top_p": st.sampled_from([5e-324, 1e-300, 1e-9, 0.5, 1 - 2**-53, 1.0]),
        "min_p": st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.5, 0.99999999, 1 - 2**-53]),
    }
)


def extreme_logits(kind: str, rows: int, seed: int) -> torch.Tensor:
    logits = random_logits(rows, vocab=300, seed=seed)
    if kind in ("large", "small"):
        return logits * (1e37 if kind == "large" else 1e-30)
    if kind == "one is allowed":
        logits[:, torch.arange(300) != seed % 300] = -torch.inf
    if kind == "equal":
        logits[:] = -0.0
        logits[:, ::3] = 0.0
    if kind == "holes":
        logits[:, ::2] = -torch.inf
        logits[:, 1::4] = torch.nan
    return logits


KINDS = ("plain", "large", "small", "one is allowed", "equal", "holes")


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    rows=st.lists(extreme_knobs, min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 1000),
)
def test_extremes_are_drawn_alike(rows: list[dict[str, Any]], kind: str, seed: int) -> None:
    # given
    logits = extreme_logits(kind, len(rows), seed)
    asked = [SamplingRequest(SamplingParams(seed=seed, **row), seed) for row in rows]
    # when
    found = drawn_each_way(logits, asked)
    # then
    assert found[0] == found[1]
    assert all(logits[i, token].isfinite() for i, token in enumerate(found[0]))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "others", [{}, {"top_p": 0.9}, {"top_p": 5e-324}, {"min_p": 0.1}, {"top_k": 5}], ids=str
)
def test_next_to_no_temperature_takes_one_of_the_largest(others: dict[str, Any]) -> None:
    # given: temperatures down to the least float; of the second row two logits are the largest
    logits = random_logits(2, vocab=300)
    largest = int(logits[0].argmax())
    logits[1] = logits[0]
    logits[1, 299] = logits[1, largest]
    for exponent in range(-3, -325, -1):
        params = SamplingParams(temperature=max(10.0**exponent, 5e-324), seed=1, **others)
        # when
        first = sample(logits, [SamplingRequest(params, exponent + 400)] * 2)
        # then
        assert first[0] == largest
        assert first[1] in (largest, 299)


@pytest.mark.usefixtures("either_way")
def test_ties_are_drawn_evenly_at_any_temperature() -> None:
    logits = torch.zeros(64, 2)
    for temperature in (5e-324, 1e-40, 1.0, 1e6):
        params = SamplingParams(temperature=temperature, seed=1)
        drawn = sample(logits, [SamplingRequest(params, i) for i in range(64)])
        assert 16 < sum(drawn) < 48


@pytest.mark.usefixtures("either_way")
def test_min_p_tells_apart_what_float32_weights_do_not() -> None:
    # given: logits whose weights at this temperature are all 1 in float32
    logits = torch.tensor([[1.0, 1.03, 1.02]]).expand(64, -1).contiguous()
    params = SamplingParams(temperature=1e6, min_p=0.99999998, seed=1)
    # when
    drawn = sample(logits, [SamplingRequest(params, i) for i in range(64)])
    # then: e^(-0.01 / 1e6) is more than that, e^(-0.03 / 1e6) is not
    assert set(drawn) == {1, 2}
