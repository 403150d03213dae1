"""A request given the tokens it already has goes on with exactly the ones that remain."""

from collections.abc import Sequence
from typing import Any

import pytest

from rose.engine_records import TokenLogprob
from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, StepOutput
from tests.roseinfer.models import drain, greedy, prompts, run_alone, text, tokens

COUNT = 14
SCHEMA = """{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", null]}},
"required": ["a", "b"], "additionalProperties": false}"""
FEATURES: dict[str, dict[str, Any]] = {
    "penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.9,
        "logit_bias": ((5, 3.0), (9, -4.0)),
    },
    "least": {"min_new_tokens": 6, "stop_token_ids": tuple(range(60, 180)), "ignore_eos": False},
    "n-grams": {"no_repeat_ngram_size": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "schema": {"json_schema": SCHEMA, "ignore_eos": False, "max_new_tokens": 80},
    "regex": {"regex": "[a-z]{3,9}( [0-9]+)?", "ignore_eos": False},
    "grammar": {"grammar": 'start: ("ab" | "c" start) /[xyz]{2,6}/', "ignore_eos": False},
    "lazy": {
        "grammar": 'start: /[a-m]/ /[n-z]{2,4}/ "."',
        "grammar_triggers": tuple("abcdefghijklm"),
        "ignore_eos": False,
    },
}
FEATURES["all"] = {
    **FEATURES["penalties"],
    **FEATURES["regex"],
    **FEATURES["logprobs"],
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 6,
}
PARAMS = {
    "greedy": greedy(COUNT),
    "sampled": greedy(COUNT, temperature=1.5, top_p=0.95, seed=5),
    "stopped": greedy(COUNT, temperature=1.5, seed=6),
    **{name: greedy(COUNT, **changes) for name, changes in FEATURES.items()},
    **{
        f"{name}, sampled": greedy(COUNT, temperature=1.5, seed=7, **changes)
        for name, changes in FEATURES.items()
    },
}


def with_stop(engine: InferenceEngine, params: SamplingParams) -> SamplingParams:
    """`params` with a stop string that really comes, two characters wide."""
    whole = text(run_alone(engine, prompts(30)[0], params))
    return greedy(COUNT, temperature=params.temperature, seed=params.seed, stop=(whole[5:7],))


@pytest.mark.parametrize("kind", sorted(PARAMS))
def test_the_rest_follows(engine: InferenceEngine, kind: str) -> None:
    prompt, params = prompts(30)[0], PARAMS[kind]
    if kind == "stopped":
        params = with_stop(engine, params)
    whole = run_alone(engine, prompt, params)
    for done in range(len(whole)):
        rest = run_alone(engine, prompt, params, generated_ids=tokens(whole)[:done])
        assert [fields(output) for output in rest] == [fields(o) for o in whole[done:]]


def fields(output: StepOutput) -> tuple[object, ...]:
    """What can be compared of an output."""
    names = ("index", "token_ids", "text", "finish_reason", "error")
    return *(getattr(output, name) for name in names), _rounded(output.logprobs)


def _rounded(logprobs: Sequence[TokenLogprob] | None) -> object:
    """A prefill and a decode step agree in all but the last bits."""
    return [
        (round(own, 3), [(token_id, round(value, 3)) for token_id, value in top])
        for own, top in logprobs or ()
    ]


@pytest.mark.parametrize(
    ("params", "generated", "reason"),
    [
        (SamplingParams(max_new_tokens=9), [5, 6, 257], "eos"),
        (SamplingParams(max_new_tokens=9, stop_token_ids=(7,)), [5, 7], "stop"),
        (SamplingParams(max_new_tokens=3), [5, 6, 7], "length"),
        (SamplingParams(max_new_tokens=9, stop=("&'",)), [4, 5, 6], "stop"),
    ],
)
def test_what_had_already_ended_says_so(
    engine: InferenceEngine, params: SamplingParams, generated: list[int], reason: str
) -> None:
    (output,) = run_alone(engine, [1, 2, 3], params, generated_ids=generated)
    assert (output.index, output.token_ids, output.text) == (len(generated), (), "")
    assert output.finish_reason == reason


def test_the_response_includes_the_replayed_text(engine: InferenceEngine) -> None:
    prompt = prompts(20)[0]
    whole = run_alone(engine, prompt, greedy(10))
    scheduler = OnlineScheduler(engine)
    name = scheduler.add_request(prompt, params=greedy(10), generated_ids=tokens(whole)[:4])
    drain(scheduler)
    assert scheduler.pop_response(name) == text(whole)
