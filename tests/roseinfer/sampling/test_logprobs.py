"""Log-probabilities are the model's own, whatever is done to the logits afterwards."""

from typing import Any

import pytest
import torch

from rose.engine_records import TokenLogprob
from roseinfer import InferenceEngine, SamplingParams
from roseinfer.sampling.sampler import logprobs, score
from tests.roseinfer.models import greedy, prompts, run_alone, tiny_llama, tokens


@pytest.fixture(scope="module")
def reference() -> Any:
    return tiny_llama()


def own(reference: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """transformers' log-probabilities [len(output), V] of each generated token."""
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + output])).logits[0]
    return logits[len(prompt) - 1 : -1].float().log_softmax(-1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.3, "seed": 4, "top_k": 30},
        {"repetition_penalty": 1.5, "logit_bias": ((9, 20.0),)},
    ],
)
def test_they_are_those_of_the_model(
    engine: InferenceEngine, reference: Any, changes: dict[str, Any]
) -> None:
    prompt = prompts(20)[0]
    outputs = run_alone(engine, prompt, greedy(8, logprobs=True, top_logprobs=5, **changes))
    expected = own(reference, prompt, tokens(outputs))
    for output, row in zip(outputs, expected, strict=True):
        assert output.logprobs is not None
        ((logprob, top),) = output.logprobs
        assert logprob == pytest.approx(float(row[output.token_ids[0]]), abs=2e-4)
        values, ids = row.topk(5)
        assert [token_id for token_id, _ in top] == ids.tolist()
        assert [value for _, value in top] == pytest.approx(values.tolist(), abs=2e-4)


def test_asking_for_them_changes_no_token(engine: InferenceEngine) -> None:
    params = greedy(8, temperature=1.2, seed=2)
    asked = greedy(8, temperature=1.2, seed=2, logprobs=True)
    plain = run_alone(engine, prompts(20)[0], params)
    with_them = run_alone(engine, prompts(20)[0], asked)
    assert tokens(plain) == tokens(with_them)
    assert all(output.logprobs is None for output in plain)
    assert all(len(output.logprobs or ()) == 1 for output in with_them)
    assert all(found.top == () for output in with_them for found in output.logprobs or ())


def scored(
    logits: torch.Tensor, token_ids: list[int], params: list[SamplingParams]
) -> dict[int, TokenLogprob]:
    scores = score(logits, torch.tensor(token_ids), params)
    assert scores is not None
    return logprobs(scores, params)


def test_each_row_gets_what_it_asks_for() -> None:
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(0)).bfloat16()
    wanted = [
        SamplingParams(),
        SamplingParams(logprobs=True, top_logprobs=20),
        SamplingParams(logprobs=True, top_logprobs=1),
        SamplingParams(logprobs=True),
    ]
    found = scored(logits, [3, 4, 5, 6], wanted)
    assert {row: len(value.top) for row, value in found.items()} == {1: 20, 2: 1, 3: 0}
    for row, value in found.items():
        alone = scored(logits[row : row + 1], [3 + row], [wanted[row]])
        assert alone == {0: value}


def test_what_the_model_rules_out_has_a_number() -> None:
    logits = torch.tensor([[0.0, -torch.inf]])
    (found,) = scored(logits, [1], [SamplingParams(logprobs=True, top_logprobs=2)]).values()
    assert found.logprob == -9999.0
    assert found.top == ((0, 0.0), (1, -9999.0))
