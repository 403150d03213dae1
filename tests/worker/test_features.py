"""Generation features from submit to result, through real workers with the built-in model."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from rose.errors import InvalidParameter
from rose_producer import Client, Request, Result, TokenEvent
from tests.conftest import needs_redis_server
from tests.support.bench import wait_until
from tests.support.echo import StartWorker

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 60, "maxLength": 80},  # so that it takes a while
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REGEX = "[A-Z][a-z]{2,20}( [a-z]{2,20}){30}"
FEATURES: list[dict[str, Any]] = [
    {"json_schema": SCHEMA, "max_new_tokens": 120},
    {"regex": REGEX, "temperature": 0.9},
    {"grammar": 'start: ("ha" | "ho"){60}', "temperature": 2.0},
    {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "no_repeat_ngram_size": 2,
    },
    {"min_new_tokens": 60, "stop": ["e"], "temperature": 1.0, "max_new_tokens": 80},
    {"logit_bias": {5: 2.0, 6: -100.0}, "logprobs": True, "top_logprobs": 2, "temperature": 1.0},
]
MISTAKES = [{"regex": "a("}, {"json_schema": {"type": "no such type"}}, {"logit_bias": {99_999: 1}}]


def requests() -> list[Request]:
    return [
        Request("Once upon a time", sampling={"seed": seed, "max_new_tokens": 70, **feature})
        for seed, feature in enumerate(FEATURES)
    ]


def without_id(result: Result) -> tuple[Any, ...]:
    rounded = [round(token.logprob, 3) for token in result.logprobs or ()]
    return result.text, result.token_ids, result.finish_reason, rounded


@needs_redis_server
@pytest.mark.timeout(240)  # two engines start
def test_every_feature_survives_the_death_of_its_worker(
    client: Client, start_worker: StartWorker
) -> None:
    # given: two workers, and jobs that have begun
    engine = {"engine": "rose", "device": "cpu", "torch_threads": 1, "min_step_s": 0.03}
    workers = {name: start_worker(ready=False, **engine) for name in ("w0", "w1")}
    workers["w0"].wait_ready()
    jobs = client.submit_many(requests())
    refused = client.submit_many(
        [Request("Once", sampling={"max_new_tokens": 3, **wrong}) for wrong in MISTAKES]
    )
    wait_until(lambda: all(job.status().tokens >= 5 for job in jobs))
    # when
    holder = jobs[0].status().worker
    assert holder is not None
    workers[holder].kill()
    results = [job.result(60) for job in jobs]
    assert jobs[0].status().epoch > 1
    # then: the same as undisturbed
    undisturbed = [job.result(60) for job in client.submit_many(requests())]
    assert [without_id(r) for r in results] == [without_id(r) for r in undisturbed]
    schema, regex, grammar, penalised, least, scored = results
    assert set(json.loads(schema.text)) == {"name", "age"}
    assert re.fullmatch(REGEX, regex.text) or regex.finish_reason == "length"
    assert re.fullmatch("(ha|ho){60}", grammar.text) or grammar.finish_reason == "length"
    pairs = list(itertools.pairwise(penalised.token_ids))
    assert len(set(pairs)) == len(pairs)
    assert len(least.token_ids) > 60
    assert 6 not in scored.token_ids
    assert scored.logprobs is not None
    assert [len(token.top) for token in scored.logprobs] == [2] * len(scored.token_ids)
    assert schema.logprobs is None
    # and: what no worker can run says so
    for job in refused:
        with pytest.raises(InvalidParameter):
            job.result(60)
    events = [event for event in jobs[5].stream() if isinstance(event, TokenEvent)]
    assert tuple(token for event in events for token in event.logprobs or ()) == scored.logprobs


def test_the_null_engine_says_what_it_cannot_do(client: Client, start_worker: StartWorker) -> None:
    start_worker()
    for wrong in ({"regex": "a"}, {"logprobs": True}):
        with pytest.raises(InvalidParameter, match="null engine"):
            client.submit("x", **wrong).result(90)


def test_a_chat_with_tools_is_run_or_refused_by_the_models_template(
    client: Client, start_worker: StartWorker
) -> None:
    # given: the built-in model was taught neither developers nor tools
    start_worker(engine="rose", device="cpu", torch_threads=1)
    asked = [{"role": "user", "content": "Where does the bear live?"}]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    # when
    told = client.submit([{"role": "developer", "content": "Be kind."}, *asked], tools=[tool])
    plain = client.submit([{"role": "system", "content": "Be kind."}, *asked])
    answered = client.submit([*asked, {"role": "tool", "content": "In a cave."}])
    # then
    assert told.result(90).text == plain.result(90).text
    with pytest.raises(InvalidParameter, match="Unknown role: tool"):
        answered.result(90)


def test_a_result_says_how_much_of_its_prompt_was_cached(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    start_worker(engine="rose", device="cpu", torch_threads=1)
    story = "Once upon a time there was a little fox who lived in a big wood. " * 3
    # when
    first = client.submit(story, max_new_tokens=3).result(90)
    second = client.submit(story, max_new_tokens=3).result(90)
    # then
    assert first.cached_tokens == 0
    assert second.cached_tokens is not None
    assert first.prompt_tokens - 16 <= second.cached_tokens < first.prompt_tokens


def test_an_engine_without_a_cache_does_not_say(client: Client, start_worker: StartWorker) -> None:
    start_worker()
    assert client.submit("ab", max_new_tokens=2).result(90).cached_tokens is None
