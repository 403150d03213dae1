"""POST /v1/completions of a running gateway. The null engine echoes the prompt's bytes."""

from typing import Any

import pytest
from openai import OpenAI

from tests.support.echo import echoed_text as echo
from tests.support.gateway import Deployment


def test_sixteen_tokens_are_the_default(ai: OpenAI) -> None:
    answer = ai.completions.create(model="null", prompt="Hi")

    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == echo(b"Hi", 16)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 16)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", [echo(b"ab", 3)]),
        ([7, 300], [echo([7, 300], 3)]),
        (["a", "b"], [echo(b"a", 3), echo(b"b", 3)]),
        ([[7], [8, 9]], [echo([7], 3), echo([8, 9], 3)]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_a_prompt_is_text_or_ids_or_several(
    ai: OpenAI, prompt: Any, texts: list[str], n: int
) -> None:
    answer = ai.completions.create(model="null", prompt=prompt, max_tokens=3, n=n)
    chunks = ai.completions.create(model="null", prompt=prompt, max_tokens=3, n=n, stream=True)

    expected = [text for text in texts for _ in range(n)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(len(expected)))
    streamed = [""] * len(expected)
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        streamed[choice.index] += choice.text
    assert streamed == expected


def test_prompts_are_counted_once_each(ai: OpenAI) -> None:
    answer = ai.completions.create(model="null", prompt=["a", "bcd"], max_tokens=3, n=2)

    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_begins_with_the_prompt(ai: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "null", "prompt": ["a", "b"], "max_tokens": 1, "echo": True}

    if stream:
        texts = ["", ""]
        for chunk in ai.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    else:
        texts = [choice.text for choice in ai.completions.create(**asked).choices]

    assert texts == ["a97 ", "b98 "]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("echo", "text"), [(True, "ab"), (False, "")])
def test_no_token_may_be_asked_for(ai: OpenAI, stream: bool, echo: bool, text: str) -> None:
    asked: dict[str, Any] = {"model": "null", "prompt": "ab", "max_tokens": 0, "echo": echo}

    if stream:
        chunks = list(
            ai.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        )
        parts, usage = [choice for chunk in chunks for choice in chunk.choices], chunks[-1].usage
    else:
        answer = ai.completions.create(**asked)
        parts, usage = answer.choices, answer.usage

    assert "".join(part.text for part in parts) == text
    assert parts[-1].finish_reason == "length"
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 0, 2)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 33, "n": 2}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": [1], "echo": True}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"messages": [{}]}, "messages"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    deployment: Deployment, more: dict[str, Any], param: str
) -> None:
    body = {"model": "null", "prompt": "x", **more}

    answer = deployment.post("/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_what_means_nothing_is_accepted(ai: OpenAI) -> None:
    answer = ai.completions.create(
        model="null", prompt="x", max_tokens=1, suffix="", best_of=1, user="u", stop=None, n=None
    )

    assert answer.choices[0].text == "120 "


def test_a_benchmark_may_ask_for_the_usage_so_far(ai: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}  # as guidellm does

    chunks = list(
        ai.completions.create(
            model="null", prompt="x", max_tokens=2, stream=True, stream_options=options
        )
    )

    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (1, 2)


@pytest.mark.parametrize("max_tokens", [1_000_000, -1])
def test_more_tokens_than_fit_are_no_load(start_deployment: Any, max_tokens: int) -> None:
    deployment = start_deployment(worker={"max_context": 10, "max_queued_tokens": 20})

    with deployment.openai() as ai:
        answer = ai.completions.create(model="null", prompt="x", max_tokens=max_tokens)

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == echo(b"x", 9)
