"""Sampling: filters, distribution, and independence of everything but the row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

from roseinfer import SamplingParams, native, sampling
from roseinfer.sampling import filter_logits, uniform
from roseinfer.session import SamplingRequest
from tests.roseinfer.models import sample

WAYS = ("compiled", "torch")


@contextmanager
def drawing(way: str) -> Iterator[None]:
    """As the compiled library draws, or as torch does where there is none."""
    if way == "compiled" and not native.available():
        pytest.skip("the installation could not compile the library")
    with pytest.MonkeyPatch.context() as patch:
        if way == "torch":
            patch.setattr(native, "can_sample", lambda _: False)
        yield


@pytest.fixture(params=WAYS)
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    with drawing(request.param):
        yield


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
        patch.setattr(sampling, "_MAX_SHORT_TOP_K", 60)
        short = filter_logits(logits, params)
        patch.setattr(sampling, "_MAX_SHORT_TOP_K", 0)
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


def test_greedy_is_the_exact_argmax() -> None:
    logits = random_logits(8)
    rows = [SamplingRequest(SamplingParams(), i) for i in range(8)]
    mixed = [SamplingRequest(SamplingParams(temperature=float(i % 2), seed=1), i) for i in range(8)]
    assert sample(logits, rows) == logits.argmax(-1).tolist()
    assert sample(logits, mixed)[::2] == logits.argmax(-1).tolist()[::2]


@pytest.mark.usefixtures("either_way")
def test_top_k_one_is_greedy() -> None:
    logits = random_logits(8)
    rows = [SamplingRequest(SamplingParams(temperature=2.0, top_k=1, seed=i), i) for i in range(8)]
    assert sample(logits, rows) == logits.argmax(-1).tolist()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_the_distribution_is_exact(filters: dict[str, Any]) -> None:
    """Chi-square against the filtered probabilities, one seed, 20 000 positions."""
    count, params = 20_000, SamplingParams(temperature=0.9, seed=11, **filters)
    logits = random_logits(1, vocab=12) * 0.4
    expected = filter_logits(logits.double(), [params]).softmax(-1)[0]
    rows = [SamplingRequest(params, position) for position in range(count)]
    drawn = torch.tensor(sample(logits.expand(count, -1), rows))
    seen = torch.bincount(drawn, minlength=12).double()
    possible = expected > 0
    assert seen[~possible].sum() == 0
    error = (seen - count * expected)[possible] ** 2 / (count * expected[possible])
    degrees = int(possible.sum()) - 1
    assert float(error.sum()) < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


def test_uniform_numbers_are_uniform_and_in_range() -> None:
    positions = torch.arange(100_000)
    draws = uniform(torch.full_like(positions, -3), positions)
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    assert abs(float(draws.mean()) - 0.5) < 0.005
    assert abs(float(draws.var()) - 1 / 12) < 0.002
    assert len(set(draws.tolist())) == 100_000


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


@settings(max_examples=40, derandomize=True)
@given(mates=st.lists(knobs, max_size=5), own=knobs, position=st.integers(0, 10_000))
def test_a_row_does_not_depend_on_its_mates(
    mates: list[dict[str, Any]], own: dict[str, Any], position: int
) -> None:
    logits = random_logits(6)
    row = SamplingRequest(SamplingParams(seed=3, **own), position)
    company = [SamplingRequest(SamplingParams(seed=i, **mate), i) for i, mate in enumerate(mates)]
    for way in WAYS:
        with drawing(way):
            alone = sample(logits[:1], [row])
            together = sample(logits[: 1 + len(mates)], [row, *company])
        assert together[:1] == alone


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
    found = []
    for way in WAYS:
        with drawing(way):
            found.append(sample(logits, asked))
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
def test_seed_and_position_decide() -> None:
    logits = random_logits(1).expand(64, -1) * 0.1
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (1, 2)]
    first, second = (sample(logits, [SamplingRequest(p, i) for i in range(64)]) for p in params)
    again = sample(logits, [SamplingRequest(params[0], i) for i in range(64)])
    assert first == again
    assert first != second
    assert len(set(first)) > 10
