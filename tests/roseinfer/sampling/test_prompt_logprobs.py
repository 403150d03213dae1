"""The log-probabilities of a prompt are the model's own, however the prompt is computed."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rose.engine_records import PromptLogprobs, StepOutput
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams
from tests.roseinfer.models import (
    drain,
    engine_run_by,
    greedy,
    prompts,
    run_alone,
    run_together,
    tiny_llama,
    tokens,
)

RUNNERS = ["compiled", "transformers"]


def scoring(count: int = 2, **changes: Any) -> SamplingParams:
    return greedy(
        count, **{"logprobs": True, "top_logprobs": 3, "prompt_logprobs": True, **changes}
    )


def scores_of(outputs: Sequence[StepOutput]) -> PromptLogprobs:
    first, *others = outputs
    assert first.prompt_logprobs is not None
    assert all(output.prompt_logprobs is None for output in others), "they came again"
    return first.prompt_logprobs


def assert_models_own(found: PromptLogprobs, model: Any, prompt: Sequence[int]) -> None:
    with torch.no_grad():
        rows = model(torch.tensor([prompt])).logits[0].float().log_softmax(-1)[:-1]
    assert list(found.token_ids) == list(prompt)
    assert len(found.logprobs) == len(prompt) - 1
    for (logprob, top), token_id, row in zip(found.logprobs, prompt[1:], rows, strict=True):
        assert logprob == pytest.approx(float(row[token_id]), abs=2e-4)
        values, ids = row.topk(3)
        assert [top_id for top_id, _ in top] == ids.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=2e-4)


@pytest.mark.parametrize(
    # Triton's interpreter takes seconds: two whole chunks, and one of a single token.
    ("length", "runner"),
    [*itertools.product([1, 2, 17, 60], RUNNERS), (17, "triton")],
)
def test_they_are_those_of_the_model(length: int, runner: str) -> None:
    # given
    engine = engine_run_by(runner, tiny_llama(), kv_cache_tokens=512)
    (prompt,) = prompts(length)
    # when its chunks are 8 tokens
    scheduler = OnlineScheduler(engine, 4, max_step_tokens=8)
    (outputs,) = run_together(scheduler, [prompt], [scoring()])
    # then
    assert_models_own(scores_of(outputs), tiny_llama(), prompt)


def test_asking_for_them_changes_no_token(engine: InferenceEngine) -> None:
    (prompt,) = prompts(30)
    plain = run_alone(engine, prompt, greedy(6))
    assert tokens(run_alone(engine, prompt, scoring(6))) == tokens(plain)
    assert all(output.prompt_logprobs is None for output in plain)


def test_a_prefix_in_the_cache_is_computed_again(engine: InferenceEngine) -> None:
    # given a request with the same prompt has left its blocks
    (prompt,) = prompts(60)
    first = scores_of(run_alone(engine, prompt, scoring()))
    # when
    outputs = run_alone(engine, prompt, scoring())
    # then
    assert scores_of(outputs) == first
    assert outputs[-1].cached_tokens == 0


def test_others_beside_them_change_nothing(engine: InferenceEngine) -> None:
    """Among requests that decode, some with drafts, and prompts that are cut anywhere."""
    asked = prompts(40, 7, 25, 33, 3)
    wanted = [scoring(), greedy(20), scoring(9), greedy(3, logprobs=True), scoring(1)]
    alone = [run_alone(engine, p, q) for p, q in zip(asked, wanted, strict=True)]
    scheduler = OnlineScheduler(engine, 4, max_step_tokens=12, speculation=True)
    together = run_together(scheduler, asked, wanted)
    for own, found, params in zip(alone, together, wanted, strict=True):
        assert tokens(found) == tokens(own)
        if params.prompt_logprobs:
            assert scores_of(found) == scores_of(own)


def test_preemption_in_the_middle_of_a_prompt_repeats_none() -> None:
    # given blocks for one and a half of these requests
    engine = InferenceEngine.from_model(tiny_llama(), kv_cache_tokens=128)
    asked = prompts(60, 50)
    alone = [scores_of(run_alone(engine, prompt, scoring())) for prompt in asked]
    scheduler = OnlineScheduler(engine, 2, max_step_tokens=8)
    older = scheduler.add_request(asked[0], params=scoring(60))
    younger = scheduler.add_request(asked[1], params=scoring(1))
    outputs: dict[str, list[StepOutput]] = {older: [], younger: []}
    # when the younger one has scores of a part of its prompt
    (session,) = (s for s in scheduler._sessions.values() if s.request_id == younger)
    while session.num_scored < 10:
        for output in scheduler.step():
            outputs[output.request_id].append(output)
    scheduler._planner._preempt_youngest()
    for name, further in drain(scheduler).items():
        outputs[name] += further
    # then
    assert session.admissions == 2
    assert [scores_of(outputs[name]) for name in (older, younger)] == alone


def test_a_request_that_goes_on_elsewhere_had_them(engine: InferenceEngine) -> None:
    (prompt,) = prompts(20)
    whole = run_alone(engine, prompt, scoring(6))
    resumed = run_alone(engine, prompt, scoring(6), generated_ids=tokens(whole)[:2])
    assert tokens(whole)[2:] == tokens(resumed)
    assert all(output.prompt_logprobs is None for output in resumed)
