"""What a worker with the built-in model can do, and refuses. That features survive a death is in
test_engines.py."""

from pathlib import Path
from typing import Any

import pytest

from rose.errors import InvalidParameter
from rose_producer import Client, TokenEvent
from tests.support.chat_model import write_chat_model
from tests.support.echo import StartWorker

MISTAKES = [{"regex": "a("}, {"json_schema": {"type": "no such type"}}, {"logit_bias": {99_999: 1}}]


def test_what_no_worker_can_run_says_so(client: Client, start_worker: StartWorker) -> None:
    start_worker(engine="rose", device="cpu", torch_threads=1)
    for wrong in MISTAKES:
        with pytest.raises(InvalidParameter):
            client.submit("Once", max_new_tokens=3, **wrong).result(90)


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


def test_the_models_template_is_told_what_the_job_says_beside(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    # given
    model = str(write_chat_model(tmp_path))
    start_worker(engine="rose", device="cpu", torch_threads=1, model=model)
    asked = [{"role": "user", "content": "Where does the bear live?"}]
    # when
    plain, told = (
        client.submit(asked, max_new_tokens=1, chat_template_kwargs=variables).result(90)
        for variables in ({}, {"enable_thinking": False})
    )
    # then: it has written more
    assert told.prompt_tokens > plain.prompt_tokens


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


def test_a_prompt_comes_with_log_probabilities_once(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    start_worker(engine="rose", device="cpu", torch_threads=1)
    asked: dict[str, Any] = {"max_new_tokens": 3, "logprobs": True, "top_logprobs": 1}
    # when
    plain = client.submit("Once upon a time", **asked).result(90)
    job = client.submit("Once upon a time", **asked, prompt_logprobs=True)
    scored, (first, *others) = job.result(90), job.stream()
    # then
    assert (scored.token_ids, scored.logprobs) == (plain.token_ids, plain.logprobs)
    assert plain.prompt_logprobs is None
    assert scored.prompt_logprobs is not None
    token_ids, logprobs = scored.prompt_logprobs
    assert len(token_ids) == len(logprobs) + 1 == scored.prompt_tokens
    assert -10 < sum(logprob for logprob, _ in logprobs) < 0, "stories begin like this"
    assert isinstance(first, TokenEvent)
    assert first.prompt_logprobs == scored.prompt_logprobs
    assert not any(isinstance(e, TokenEvent) and e.prompt_logprobs for e in others)


def test_prefixes_are_shared_within_a_tenant_and_its_salt(
    client: Client, start_worker: StartWorker
) -> None:
    # given
    start_worker(engine="rose", device="cpu", torch_threads=1)
    story = "Once upon a time there was a little fox who lived in a big wood. " * 3

    def cached(**whose: Any) -> int | None:
        return client.submit(story, max_new_tokens=3, **whose).result(90).cached_tokens

    parties: tuple[dict[str, Any], ...] = (
        {},
        {"tenant": "a"},
        {"tenant": "b"},
        {"tenant": "a", "cache_salt": "x"},
        {"cache_salt": "x"},
        {"cache_salt": "a//"},  # what a caller gives names no tenant
        {"cache_salt": "a"},
        {"owner": "a"},
    )
    # when: each for the first time, then again
    first, again = ([cached(**whose) for whose in parties] for _ in range(2))
    # then
    assert first == [0] * len(parties)
    assert all(again)
    assert cached(tenant="a", owner="somebody"), "a tenant's jobs are one party, whoever's they are"
    with pytest.raises(InvalidParameter, match="cache_salt: must have 1 to 256 characters"):
        cached(cache_salt="")
    with pytest.raises(InvalidParameter, match="it has 257"):
        cached(cache_salt="x" * 257)


def test_more_log_probabilities_of_a_prompt_than_an_event_holds(
    client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    # given
    model = str(write_chat_model(tmp_path))
    start_worker(engine="rose", device="cpu", torch_threads=1, model=model)
    prompt = [5] * 3000
    asked: dict[str, Any] = {"max_new_tokens": 1, "logprobs": True, "prompt_logprobs": True}
    # when
    fits = client.submit(prompt, **asked)
    too_many = client.submit(prompt, **asked, top_logprobs=20)
    # then
    assert fits.result(90).prompt_logprobs is not None
    with pytest.raises(InvalidParameter, match="an event holds those of 2240"):
        too_many.result(90)


def test_an_engine_without_a_cache_does_not_say(client: Client, start_worker: StartWorker) -> None:
    start_worker()
    assert client.submit("ab", max_new_tokens=2).result(90).cached_tokens is None
