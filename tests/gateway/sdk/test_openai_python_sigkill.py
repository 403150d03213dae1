"""OpenAI's client, unmodified: its streams while their worker is killed in mid-sentence."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from rose_cli.local.services import WorkerProcess
from tests.support.bench import wait_until
from tests.support.gateway import Deployment

MODEL = "built-in"
PROMPT = "Once upon a time"
TOKENS = 150
ON = {"ignore_eos": True}
DRAWN = {"temperature": 0.9, "seed": 7, **ON}
#: Deltas of a stream before the worker is killed.
MIDWAY = 20

#: In slow motion, on the real engine.
WORKER = {"engine": "rose", "torch_threads": 1, "min_step_s": 0.02}

Texts = Iterator[str]


def chat(client: OpenAI) -> Texts:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        stream=True,
        extra_body=DRAWN,
    )
    for chunk in stream:
        yield chunk.choices[0].delta.content or ""
    assert chunk.choices[0].finish_reason == "length"


def scored_chat(client: OpenAI) -> Texts:
    """Each delta with its tokens and how likely they were."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        temperature=0,
        logprobs=True,
        stream=True,
        extra_body=ON,
    )
    for chunk in stream:
        scores = chunk.choices[0].logprobs
        for token in (scores.content or ()) if scores else ():
            yield f"{token.token} {token.logprob} "


def completion(client: OpenAI) -> Texts:
    stream = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=TOKENS, stream=True, extra_body=DRAWN
    )
    for chunk in stream:
        yield chunk.choices[0].text


def response(client: OpenAI) -> Texts:
    stream = client.responses.create(
        model=MODEL,
        input=PROMPT,
        max_output_tokens=TOKENS,
        temperature=0,
        stream=True,
        extra_body=ON,
    )
    numbers = []
    for event in stream:
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            yield event.delta
    assert numbers == list(range(len(numbers)))


STREAMS = (chat, scored_chat, completion, response)


def read(texts: Texts, into: list[str]) -> None:
    for text in texts:
        into.append(text)  # noqa: PERF402 - others look at it meanwhile


def all_streams(
    client: OpenAI, in_the_middle: Callable[[Sequence[list[str]]], None] = lambda _: None
) -> list[str]:
    """The text of each, read at once."""
    parts: list[list[str]] = [[] for _ in STREAMS]
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        readers = [
            pool.submit(read, stream(client), into)
            for stream, into in zip(STREAMS, parts, strict=True)
        ]
        in_the_middle(parts)
        for reader in readers:
            reader.result()
    return ["".join(texts) for texts in parts]


@pytest.fixture
def heir(start_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    """A worker that is ready, and stands still until it is told to go on."""
    worker = start_worker(**WORKER)
    worker.signal(signal.SIGSTOP)
    return worker


def test_streams_lose_no_token_when_their_worker_is_killed(
    start_deployment: Callable[..., Deployment], heir: WorkerProcess
) -> None:
    # given
    deployment = start_deployment(worker=WORKER)
    (victim,) = deployment.workers

    def kill(parts: Sequence[list[str]]) -> None:
        wait_until(lambda: all(sum(map(bool, texts)) >= MIDWAY for texts in parts))
        victim.kill()
        heir.signal(signal.SIGCONT)

    # when
    with deployment.openai(timeout=90) as client:
        disturbed = all_streams(client, kill)
        undisturbed = all_streams(client)

    # then
    assert disturbed == undisturbed
    assert heir.metrics()["rose_jobs_redelivered_total"] == len(STREAMS)
