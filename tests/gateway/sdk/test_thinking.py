"""The clients of OpenAI and Anthropic ask for thoughts, with a budget or none, also while a worker
is killed within one."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequest
from anthropic.types import ThinkingBlock
from openai import BadRequestError, OpenAI
from openai.types.responses import ResponseReasoningItem

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from tests.gateway.sdk.deployments import HI, openai_client
from tests.roseinfer.models import byte_tokenizer
from tests.support.bench import wait_until
from tests.support.chat_model import THINKS, write_chat_model
from tests.support.gateway import Deployment, running_deployment

#: What the SDKs have no names for; the model is noise, and its tokens are bytes.
DRAWN = {"seed": 7, "ignore_eos": True}
MODEL = "thinker"
BUDGET = 40
#: The end of the thought comes on top, and a character that is not whole is waited for.
MOST = BUDGET + 8 + len("\n</think>")
MAX_TOKENS = 120


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A worker's settings."""
    folder = write_chat_model(tmp_path_factory.mktemp("thinks"), THINKS)
    return {"engine": "rose", "model": str(folder), "torch_threads": 1}


@pytest.fixture(scope="module")
def deployment(
    thinker: dict[str, Any], _brokers: Callable[[bool], EmbeddedBroker]
) -> Iterator[Deployment]:
    aliases = f'{{"{MODEL}": "thinking"}}'
    with running_deployment(
        _brokers(False).url, "thinking", worker=thinker, aliases=aliases
    ) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def openai(deployment: Deployment) -> Iterator[OpenAI]:
    with openai_client(deployment.url, timeout=90) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(deployment: Deployment) -> Iterator[Anthropic]:
    with Anthropic(base_url=deployment.origin, api_key="none", timeout=90) as client:
        yield client


def chatted(client: OpenAI, **asked: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=MAX_TOKENS, extra_body=DRAWN, **asked
    )


def test_the_template_is_told_an_effort(openai: OpenAI, anthropic: Anthropic) -> None:
    """Its words are tokens of the prompt."""
    usual = chatted(openai).usage.prompt_tokens
    told = len(byte_tokenizer()("<|system|>\neffort: high<|end|>\n")["input_ids"])
    count: Any = {"model": MODEL, "messages": HI}

    chat = chatted(openai, reasoning_effort="high")
    response = openai.responses.create(
        model=MODEL, input="hi", reasoning={"effort": "high"}, max_output_tokens=1
    )
    message = anthropic.messages.count_tokens(**count, output_config={"effort": "high"})

    assert chat.usage.prompt_tokens == usual + told
    assert response.usage is not None
    assert response.usage.input_tokens == usual + told
    assert message.input_tokens == usual + told
    assert response.reasoning is not None
    assert response.reasoning.effort == "high"


def test_thoughts_are_switched_off(openai: OpenAI, anthropic: Anthropic) -> None:
    chat = chatted(openai, reasoning_effort="none")
    message = anthropic.messages.create(
        model=MODEL,
        messages=HI,
        max_tokens=MAX_TOKENS,
        thinking={"type": "disabled"},
        extra_body=DRAWN,
    )

    assert chat.usage.completion_tokens_details.reasoning_tokens == 0
    assert not hasattr(chat.choices[0].message, "reasoning_content")
    assert [block.type for block in message.content] == ["text"]


def test_a_budget_ends_the_thought_and_the_answer_follows(
    openai: OpenAI, anthropic: Anthropic
) -> None:
    # when: it is said in each API, for the same prompt
    asked: dict[str, Any] = {"model": MODEL, "extra_body": DRAWN}
    chat = openai.chat.completions.create(
        **{**asked, "extra_body": {**DRAWN, "thinking_token_budget": BUDGET}},
        messages=HI,
        max_tokens=MAX_TOKENS,
    )
    response = openai.responses.create(
        **{**asked, "extra_body": {**DRAWN, "reasoning": {"max_tokens": BUDGET}}},
        input="hi",
        max_output_tokens=MAX_TOKENS,
    )
    message = anthropic.messages.create(
        **asked,
        messages=HI,
        max_tokens=MAX_TOKENS,
        thinking={"type": "enabled", "budget_tokens": BUDGET},
    )
    # then: all have the same thought and answer, and count its tokens
    said: Any = chat.choices[0].message
    thought, answer = said.reasoning_content, said.content
    assert thought
    assert answer
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == thought
    assert response.output_text == answer
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == thought
    assert message.content[1].text == answer
    counts = (
        chat.usage.completion_tokens_details.reasoning_tokens,
        response.usage.output_tokens_details.reasoning_tokens,
        message.usage.output_tokens_details.thinking_tokens,
    )
    assert len(set(counts)) == 1
    assert BUDGET < counts[0] <= MOST
    # and: a stream brings the same
    assert streamed(openai, [], []) == (thought, answer)
    assert streamed_response(openai) == (thought, answer)
    assert streamed_message(anthropic) == (thought, answer)


def streamed(client: OpenAI, thoughts: list[str], texts: list[str]) -> tuple[str, str]:
    """Thought and answer of a stream, which others look at meanwhile."""
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=MAX_TOKENS,
        stream=True,
        extra_body={**DRAWN, "thinking_token_budget": BUDGET},
    )
    for chunk in chunks:
        delta: Any = chunk.choices[0].delta
        thoughts.append(getattr(delta, "reasoning_content", None) or "")
        texts.append(delta.content or "")
    return "".join(thoughts), "".join(texts)


def streamed_response(client: OpenAI) -> tuple[str, str]:
    pieces: dict[str, str] = {}
    for event in client.responses.create(
        model=MODEL,
        input="hi",
        max_output_tokens=MAX_TOKENS,
        stream=True,
        extra_body={**DRAWN, "reasoning": {"max_tokens": BUDGET}},
    ):
        if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
            pieces[event.type] = pieces.get(event.type, "") + event.delta
    thought, answer = pieces.values()
    return thought, answer


def streamed_message(client: Anthropic) -> tuple[str, str]:
    thoughts, texts = list[str](), list[str]()
    with client.messages.stream(
        model=MODEL,
        messages=HI,
        max_tokens=MAX_TOKENS,
        thinking={"type": "enabled", "budget_tokens": BUDGET},
        extra_body=DRAWN,
    ) as stream:
        for event in stream:
            if event.type == "thinking":
                thoughts.append(event.thinking)
            elif event.type == "text":
                texts.append(event.text)
    return "".join(thoughts), "".join(texts)


def thought_again(openai: OpenAI, item: Any, **asked: Any) -> int:
    """How many tokens a prompt has that shows a reasoning item."""
    said = [{"role": "user", "content": "hi"}, item, {"role": "assistant", "content": "yes"}]
    response = openai.responses.create(
        model=MODEL, input=[*said, {"role": "user", "content": "hi"}], max_output_tokens=1, **asked
    )
    assert response.usage is not None
    return response.usage.input_tokens


SEALED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}


def test_a_client_keeps_a_thought_that_only_this_deployment_reads(openai: OpenAI) -> None:
    # given
    whole = {**DRAWN, "thinking_budget": BUDGET}
    asked: dict[str, Any] = {"model": MODEL, "input": "hi", "max_output_tokens": MAX_TOKENS}
    response = openai.responses.create(**asked, **SEALED, extra_body=whole)
    (thought, _) = response.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.encrypted_content
    assert thought.content
    *_, last = openai.responses.create(**asked, **SEALED, extra_body=whole, stream=True)
    streamed = last.response
    assert streamed.output[0] == thought.model_copy(update={"id": streamed.output[0].id})
    # when: it comes back sealed, in the open, and not at all
    plain = {"type": "reasoning", "id": "rs_1", "summary": []}
    sealed = {**plain, "encrypted_content": thought.encrypted_content}
    shown = {**plain, "content": [{"type": "reasoning_text", "text": thought.content[0].text}]}
    # then
    assert thought_again(openai, sealed, **SEALED) == thought_again(openai, shown)
    assert thought_again(openai, sealed) > thought_again(openai, plain)
    for broken in ("gAAAA", sealed["encrypted_content"][:-4]):
        with pytest.raises(BadRequestError) as refused:
            thought_again(openai, {**plain, "encrypted_content": broken}, **SEALED)
        assert refused.value.param == "input[1].encrypted_content"
        assert refused.value.code == "invalid_seal"


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_a_thinking_block_comes_back_as_it_was_signed(anthropic: Anthropic, display: Any) -> None:
    # given
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET, "display": display},
    }
    with anthropic.messages.stream(**asked, messages=HI, extra_body=DRAWN) as stream:
        message = stream.get_final_message()
    thought, text = message.content
    assert isinstance(thought, ThinkingBlock)
    assert bool(thought.thinking) == (display == "summarized")
    again = anthropic.messages.create(**asked, messages=HI, extra_body=DRAWN)
    assert [block.to_dict() for block in again.content] == [thought.to_dict(), text.to_dict()]

    def counted(*blocks: Any) -> int:
        return anthropic.messages.count_tokens(
            model=MODEL, messages=[*HI, {"role": "assistant", "content": [*blocks, text]}, *HI]
        ).input_tokens

    # then
    assert counted(thought) > counted()
    assert counted(thought) == counted({"type": "thinking", "thinking": "", **signed(thought)})
    for broken in (
        {"type": "thinking", "thinking": "Something else.", **signed(thought)},
        {"type": "thinking", "thinking": thought.thinking, "signature": "ErUBCkYIBxgC"},
    ):
        with pytest.raises(AnthropicBadRequest, match=r"messages\[1\].content\[0\].signature"):
            counted(broken)


def signed(thought: ThinkingBlock) -> dict[str, str]:
    return {"signature": thought.signature}


def test_an_answer_continues_the_assistants_message(openai: OpenAI, anthropic: Anthropic) -> None:
    # given
    begun = [*HI, {"role": "assistant", "content": "Becau"}]
    prompt = "<|user|>\nhi<|end|>\n<|assistant|>\nBecau"
    asked: Any = {"model": MODEL, "max_tokens": 30}
    # when
    message = anthropic.messages.create(**asked, messages=begun, extra_body=DRAWN)
    count = anthropic.messages.count_tokens(model=MODEL, messages=begun)
    chats: list[Any] = [
        openai.chat.completions.create(
            **asked, messages=[*HI, {**begun[-1], **more}], extra_body={**DRAWN, **further}
        )
        for more, further in (
            ({}, {"continue_final_message": True, "add_generation_prompt": False}),
            ({"prefix": True}, {}),
            ({}, {}),
        )
    ]
    # then
    tokens = len(byte_tokenizer()(prompt)["input_ids"])
    assert count.input_tokens == tokens
    assert [chat.usage.prompt_tokens == tokens for chat in chats] == [True, True, False]
    assert [block.type for block in message.content] == ["text"]
    for chat in chats[:2]:
        assert chat.choices[0].message.content == message.content[0].text


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"regex": "a+"}, "messages[1]"),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": HI}, "messages[0]"),
        ({"messages": [*HI, {"role": "assistant", "content": "<think>\nHm"}]}, "messages[1]"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    openai: OpenAI, more: dict[str, Any], param: str
) -> None:
    begun = [*HI, {"role": "assistant", "content": "Becau"}]
    body = {"continue_final_message": True, "messages": begun, **more}

    with pytest.raises(BadRequestError) as refused:
        openai.chat.completions.create(model=MODEL, messages=[], extra_body=body)

    assert refused.value.param == param


def test_the_thought_is_the_same_when_its_worker_is_killed_within_it(
    start_deployment: Callable[..., Deployment],
    start_worker: Callable[..., WorkerProcess],
    thinker: dict[str, Any],
    queue: str,
) -> None:
    # given: a worker in slow motion, and one that stands still until it is told to go on
    slow = {**thinker, "min_step_s": 0.02}
    heir = start_worker(**slow)
    heir.signal(signal.SIGSTOP)
    deployment = start_deployment(worker=slow, aliases=f'{{"{MODEL}": "{queue}"}}')
    (victim,) = deployment.workers
    thoughts: list[str] = []
    with (
        openai_client(deployment.url, timeout=90) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        # when
        disturbed = pool.submit(streamed, client, thoughts, [])
        wait_until(lambda: len(thoughts) >= BUDGET // 4)
        victim.kill()
        heir.signal(signal.SIGCONT)
        thought, answer = disturbed.result()
        # then
        assert heir.metrics()["rose_jobs_redelivered_total"] == 1
        assert thought
        assert answer
        assert streamed(client, [], []) == (thought, answer)
