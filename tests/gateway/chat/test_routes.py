"""POST /v1/chat/completions of a running gateway. The null engine echoes the prompt's bytes."""

from typing import Any

import httpx2
import openai
import pytest
import redis
from openai import OpenAI

from rose.errors import JobNotFound
from rose.protocol import Partition
from rose_producer import Client
from tests.support.bench import wait_until
from tests.support.echo import SLOW
from tests.support.echo import echoed_text as echo
from tests.support.event_stream import event_stream, leave_when
from tests.support.gateway import Deployment

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def post(deployment: Deployment, body: Any, **headers: str) -> httpx2.Response:
    return deployment.post("/chat/completions", json=body, headers=headers)


def test_an_answer_has_all_that_openai_s_has(ai: OpenAI) -> None:
    answer = ai.chat.completions.create(
        model="null", messages=HI, max_completion_tokens=5, metadata={"for": "a test"}, store=True
    )

    (choice,) = answer.choices
    assert answer.id.startswith("chatcmpl-")
    assert (choice.message.role, choice.message.content) == ("assistant", echo("Hi", 5))
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 5)
    assert answer.metadata == {"for": "a test"}
    assert (answer.service_tier, answer.model) == ("default", "null")


def test_a_null_worker_gives_a_request_without_a_limit_no_million_tokens(ai: OpenAI) -> None:
    answer = ai.chat.completions.create(model="null", messages=HI, timeout=90)

    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (echo("Hi", 8192), "length")


def test_events_carry_the_position_and_the_job(deployment: Deployment) -> None:
    body = {"model": "null", "messages": HI, "max_tokens": 2, "stream": True}

    with event_stream("POST", f"{deployment.url}/chat/completions", body=body) as (
        response,
        events,
    ):
        sent = list(events)

    assert response.headers["content-type"].startswith("text/event-stream")
    job_id = response.headers["x-rose-job-id"]
    assert [event.id for event in sent] == ["0-0", "1-0", "2-0", "2-1", "2-3"]
    assert sent[-1].data == "[DONE]"
    assert {event.json["id"] for event in sent[:-1]} == {f"chatcmpl-{job_id}"}


def test_roles_and_parts_reach_the_model(ai: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "A"},
        {"role": "user", "content": [{"type": "text", "text": "B"}]},
    ]

    answer = ai.chat.completions.create(model="null", messages=messages, max_tokens=2)

    assert answer.choices[0].message.content == echo("AB", 2)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"model": ""}, "model"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "mp3"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"web_search_options": {"search_context_size": "high"}}, "web_search_options"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"nonsense": 1}, "nonsense"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 16_384}}, "chat_template_kwargs"),
        ({"metadata": {"x" * 65: "y"}}, "metadata"),
        ({"metadata": {"x": "y" * 513}}, "metadata.x"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    deployment: Deployment, more: dict[str, Any], param: str
) -> None:
    answer = post(deployment, {"model": "null", "messages": HI, **more})

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert answer.headers["x-should-retry"] == "false"


def test_what_means_nothing_is_accepted(deployment: Deployment) -> None:
    nothing = {
        "functions": None,
        "modalities": ["text"],
        "audio": None,
        "reasoning_effort": "none",
        "verbosity": "medium",
        "tools": [],
        "tool_choice": "auto",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "stream": False,
        "logprobs": False,
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    cached = [{**HI[0], "cache_control": {"type": "ephemeral"}}]

    answer = post(deployment, {"model": "null", "messages": cached, "max_tokens": 1, **nothing})

    assert answer.status_code == 200, answer.text
    assert answer.json()["service_tier"] == "flex"


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("repeat_penalty", 1.1, "repetition_penalty"),
        ("n_predict", 20, "max_tokens"),
        ("options", {"num_predict": 20}, "beside model"),
        ("json_schema", {"type": "object"}, "structured_outputs"),
        ("lora_path", "x", "NAME:ADAPTER"),
    ],
)
def test_what_another_server_calls_otherwise_is_refused_with_our_name(
    deployment: Deployment, name: str, value: Any, ours: str
) -> None:
    answer = post(deployment, {"model": "null", "messages": HI, name: value})

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["code"] == "unsupported_parameter"
    assert ours in error["message"]


def test_other_servers_way_of_asking_for_nothing_is_accepted(deployment: Deployment) -> None:
    # given: what programs for LM Studio, llama.cpp and vLLM send, guidance's own client among them
    nothing = {
        "max_tokens": -1,
        "stop": "",
        "repeat_penalty": 1.0,
        "top_k": 0,
        "min_p": 0,
        "cache_prompt": True,
        "n_predict": -1,
        "skip_special_tokens": True,
        "use_beam_search": False,
        "guided_decoding_backend": "guidance",
    }
    # when
    answer = post(deployment, {"model": "null", "messages": HI, **nothing})
    # then: it ends where an answer without a limit does
    assert answer.status_code == 200, answer.text
    usage = post(deployment, {"model": "null", "messages": HI}).json()["usage"]
    assert answer.json()["usage"]["completion_tokens"] == usage["completion_tokens"]


def test_what_only_the_worker_can_refuse_is_refused_too(ai: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "null", "messages": HI, "max_tokens": 3, "logprobs": True}

    with pytest.raises(openai.BadRequestError) as refused:
        ai.chat.completions.create(**asked)
    assert refused.value.code == "invalid_parameter"
    with pytest.raises(openai.APIError, match="log-probabilities"):
        list(ai.chat.completions.create(**asked, stream=True))


def test_the_same_key_brings_the_same_job_and_another_body_a_conflict(
    deployment: Deployment,
) -> None:
    body = {"model": "null", "messages": HI, "max_tokens": 3, "n": 2}
    key = {"Idempotency-Key": "the same"}

    first, second = (post(deployment, body, **key) for _ in range(2))
    other = post(deployment, {**body, "max_tokens": 4}, **key)

    assert first.json() == second.json()
    assert first.headers["x-rose-job-id"] == second.headers["x-rose-job-id"]
    assert other.status_code == 409


def test_what_is_not_stored_is_gone_when_it_is_delivered(deployment: Deployment) -> None:
    body = {"model": "null", "messages": HI, "max_tokens": 3, "store": False}
    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        for stream in (False, True):
            answer = post(deployment, {**body, "stream": stream})

            job_id = answer.headers["x-rose-job-id"]
            assert answer.status_code == 200
            assert deployment.get(f"/jobs/{job_id}").status_code == 404
            wait_until(lambda job_id=job_id: _is_gone(client, job_id))


def _is_gone(client: Client, job_id: str) -> bool:
    try:
        client.job(job_id).status()
    except JobNotFound:
        return True
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slots(start_deployment: Any, stream: bool) -> None:
    deployment = start_deployment(worker=SLOW)
    body = {"model": "null", "messages": HI, "n": 2, "stream": stream}

    job_ids = _leave_early(deployment, body)

    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        for job_id in job_ids:
            wait_until(lambda job_id=job_id: client.job(job_id).status().status == "cancelled")


def test_a_client_may_say_that_the_job_goes_on(start_deployment: Any) -> None:
    deployment = start_deployment(worker=SLOW)
    body = {"model": "null", "messages": HI, "max_tokens": 30, "stream": True}

    (job_id, _) = _leave_early(deployment, body, **{"x-rose-on-disconnect": "continue"})

    with Client(redis_url=deployment.redis_url, queue=deployment.queue) as client:
        assert client.job(job_id).result(timeout_s=60).text == echo("Hi", 30)


def _leave_early(deployment: Deployment, body: Any, **headers: str) -> tuple[str, str]:
    """The ids of the jobs that a client has left."""
    url = f"{deployment.url}/chat/completions"
    if body["stream"]:
        with event_stream("POST", url, headers, body) as (response, events):
            next(event for event in events if event.id not in ("0-0", "0-0,0-0"))
        job_id = response.headers["x-rose-job-id"]
        return job_id, f"{job_id}.1"
    with redis.Redis.from_url(deployment.redis_url) as raw:
        pattern = Partition(deployment.queue).state("*")
        leave_when(lambda: len(raw.keys(pattern)) == 2, url, body, headers)
        states = raw.keys(pattern)
    first, second = sorted(key.decode().partition(":state:")[2] for key in states)
    return first, second
