"""A prompt for which the model computes no numbers ends with an error, and alone."""

from collections.abc import Sequence
from typing import Any

import pytest

from rose.errors import LogitsNotFinite
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, StepOutput
from tests.roseinfer.models import (
    byte_tokenizer,
    drain,
    engine_run_by,
    forget_prefixes,
    greedy,
    needs_decoder,
    prompts,
    run_together,
    texts,
    tiny_llama,
    tokens,
)

#: A token whose embedding is NaN. The load probe does not have it, and no other prompt here.
BROKEN = 2


def broken(model: Any) -> Any:
    model.get_input_embeddings().weight.data[BROKEN] = float("nan")
    return model


@pytest.fixture(
    scope="module", params=[pytest.param("compiled", marks=needs_decoder), "transformers"]
)
def engine(request: pytest.FixtureRequest) -> InferenceEngine:
    model = broken(tiny_llama())
    return engine_run_by(request.param, model, tokenizer=byte_tokenizer(), kv_cache_tokens=512)


def said(outputs: Sequence[StepOutput]) -> tuple[list[int], list[str], object]:
    return tokens(outputs), texts(outputs), [output.logprobs for output in outputs]


@pytest.mark.parametrize(
    "features",
    [
        {},
        {"temperature": 1.0, "top_p": 0.9, "seed": 1},
        {"regex": "[ab]{9}"},
        {"repetition_penalty": 1.5},
        {"logprobs": True, "top_logprobs": 3, "prompt_logprobs": True},
    ],
    ids=lambda features: next(iter(features), "greedy"),
)
def test_it_ends_with_an_error_and_the_others_go_on(
    engine: InferenceEngine, features: dict[str, Any]
) -> None:
    # given
    params = SamplingParams(**{"max_new_tokens": 20, **features})
    sound, unsound = prompts(30)[0], [*prompts(9)[0], BROKEN, 5, 6]
    (alone,) = run_together(OnlineScheduler(engine), [sound], [params])
    forget_prefixes(engine)
    # when
    scheduler = OnlineScheduler(engine, overlap=engine.runs_ahead)
    good, bad = run_together(scheduler, [sound, unsound], [params, params])
    # then
    assert said(good) == said(alone)
    (last,) = bad
    assert (last.token_ids, last.text, last.finish_reason) == ((), "", "error")
    assert isinstance(last.error, LogitsNotFinite)
    assert "after 12 tokens" in str(last.error)
    assert "float32" in str(last.error)
    assert engine.cache.pool.used == 0


def test_what_it_leaves_in_the_cache_harms_nobody(engine: InferenceEngine) -> None:
    # given
    sound, params = prompts(30, 3, 200), [greedy(40), greedy(20), greedy(9)]
    wanted = run_together(OnlineScheduler(engine), sound, params)
    # when there was nothing but NaN in every block
    scheduler = OnlineScheduler(engine)
    for _ in range(3):
        scheduler.add_request([BROKEN] * 250)
        scheduler.add_request([BROKEN] * 250)
        drain(scheduler)
        forget_prefixes(engine)
    # then
    found = run_together(OnlineScheduler(engine), sound, params)
    assert [tokens(own) for own in found] == [tokens(own) for own in wanted]
    forget_prefixes(engine)
