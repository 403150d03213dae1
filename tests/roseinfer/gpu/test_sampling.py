"""The kernel draws what torch draws."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, native
from roseinfer.gpu import backends, sampling
from roseinfer.gpu.sampling import KernelRequest, sample_rows
from roseinfer.sessions.session import NO_TOKEN, SamplingRequest
from tests.roseinfer.gpu.attention_cases import DEVICE
from tests.roseinfer.models import drawing, greedy, prompts, run_together, sample, tokens
from tests.roseinfer.sampling.test_sampling import (
    KINDS,
    extreme_knobs,
    extreme_logits,
    knobs,
    random_logits,
)
from tests.roseinfer.sessions.test_resume import FEATURES


def sampled_by_kernel(logits: torch.Tensor, rows: list[SamplingRequest]) -> list[int]:
    ids = torch.full((len(rows),), -1, device=DEVICE)
    sample_rows(logits.to(DEVICE), [KernelRequest(i, i, row) for i, row in enumerate(rows)], ids)
    return [int(i) for i in ids.tolist()]


@pytest.mark.parametrize("block", [sampling._MAX_BLOCK, 128], ids=["one block", "several"])
@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    rows=st.lists(knobs, min_size=1, max_size=4),
    seed=st.integers(-(2**63), 2**63 - 1),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    rounded=st.booleans(),
    allowed=st.integers(0, 300),
)
def test_the_kernel_draws_what_torch_draws(
    block: int,
    rows: list[dict[str, Any]],
    seed: int,
    dtype: torch.dtype,
    rounded: bool,
    allowed: int,
) -> None:
    """With ties, under a grammar that allows `allowed` of the ids or none, in blocks or at once."""
    logits = random_logits(len(rows), vocab=300, seed=seed % 1000).to(dtype)
    if rounded:
        logits = logits.round()
    logits[:, allowed:] = -torch.inf
    asked = [SamplingRequest(SamplingParams(seed=seed, **row), abs(seed) % 5000) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_MAX_BLOCK", block)
        drawn = sampled_by_kernel(logits, asked)
    with drawing("torch"):
        assert drawn == sample(logits, asked)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy's, of -inf
@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    rows=st.lists(extreme_knobs, min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_kernel_draws_extremes_as_torch_does(
    rows: list[dict[str, Any]], kind: str, seed: int, dtype: torch.dtype
) -> None:
    logits = extreme_logits(kind, len(rows), seed).to(dtype)
    asked = [SamplingRequest(SamplingParams(seed=seed, **row), seed) for row in rows]
    with drawing("torch"):
        assert sampled_by_kernel(logits, asked) == sample(logits, asked)


def test_greedy_is_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 7.0, -3.0, 7.0], [-1.0, -2.0, -1.0, -5.0]])
    assert sampled_by_kernel(logits, [SamplingRequest(SamplingParams(), 0)] * 2) == [1, 0]


def test_lines_and_places_may_differ() -> None:
    """Logits that lie apart, of which some are drawn from, into places of their own."""
    logits = torch.eye(6, device=DEVICE)[:, :5].T.contiguous().T
    ids = torch.full((4,), -1, device=DEVICE)
    row = SamplingRequest(SamplingParams(), 0)
    sample_rows(logits, [KernelRequest(3, 0, row), KernelRequest(1, 2, row)], ids)
    assert ids.tolist() == [3, -1, 1, -1]
    sample_rows(logits, [], ids)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="on a GPU it draws anyway")
def test_an_engine_that_draws_by_the_kernel_says_the_same(
    engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties, biases, grammars and log-probabilities among plain rows."""
    monkeypatch.setattr(native, "can_sample", lambda _: False)
    params = [
        greedy(6),
        greedy(6, temperature=0.9, top_p=0.9, seed=1),
        *(greedy(6, temperature=0.8, seed=2, **changes) for changes in FEATURES.values()),
    ]

    def said() -> list[Any]:
        scheduler = OnlineScheduler(engine, max_batch_size=len(params))
        outputs = run_together(scheduler, prompts(9) * len(params), params)
        return [(tokens(own), [output.logprobs for output in own]) for own in outputs]

    expected = said()
    monkeypatch.setattr(backends, "can_draw", lambda _: True)
    calls = 0

    def counted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        sample_rows(*arguments)

    monkeypatch.setattr(sampling, "sample_rows", counted)
    assert said() == expected
    assert calls


@pytest.mark.parametrize("largest", [torch.nan, torch.inf, -torch.inf])
def test_a_row_whose_largest_logit_is_not_finite_has_no_token(largest: float) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    logits[1] = largest
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=1)):
        ids = sampled_by_kernel(logits, [SamplingRequest(params, 0)] * 3)
        assert ids[1] == NO_TOKEN
        assert min(ids[0], ids[2]) >= 0
