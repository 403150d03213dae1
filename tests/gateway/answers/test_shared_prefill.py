"""Several choices of a request share one prefill, and say what single requests say."""

from collections import Counter
from typing import Any

from openai import OpenAI

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from tests.support.echo import serving
from tests.support.gateway import running_gateway

ENGINE = {"engine": "rose", "device": "cpu", "torch_threads": 1}
PROMPT = "Once upon a time there was a dog who wanted to see the sea. " * 8
CHOICES, SEED, BLOCK = 4, 7, 16


def ask(ai: OpenAI, prompt: str, seed: int, **more: Any) -> Any:
    return ai.completions.create(
        model=ai.models.list().data[0].id,
        prompt=prompt,
        seed=seed,
        temperature=0.9,
        max_tokens=40,
        extra_body={"ignore_eos": True},
        **more,
    )


def cache(worker: WorkerProcess) -> tuple[float, float]:
    """Tokens that it has looked up in its cache, and those that it has found there."""
    metrics = worker.metrics()
    return (
        metrics["rose_prefix_cache_query_tokens_total"],
        metrics["rose_prefix_cache_hit_tokens_total"],
    )


def test_choices_share_one_prefill_also_where_another_worker_takes_them_over(
    broker: EmbeddedBroker, queue: str
) -> None:
    with (
        running_gateway(broker.url, queue) as gateway,
        serving("first", broker.url, queue=queue, min_step_s=0.25, **ENGINE) as first,
        OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as ai,
    ):
        # given: choices come while the worker is in a step, so they begin in the next one together
        other = iter(ask(ai, "A cat", SEED, stream=True))
        next(other)
        before, _ = cache(first)
        # when
        usage = {"include_usage": True}
        stream = iter(ask(ai, PROMPT, SEED, n=CHOICES, stream=True, stream_options=usage))
        said, pieces = [""] * CHOICES, Counter[int]()
        while len(pieces) < CHOICES or min(pieces.values()) < 4:
            (choice,) = next(stream).choices
            said[choice.index] += choice.text
            pieces[choice.index] += 1
        looked_up, found = cache(first)
        # and their worker is killed in the middle, and another one takes over
        first.kill()
        with serving("second", broker.url, queue=queue, **ENGINE) as second:
            tokens = 0
            for chunk in stream:
                for choice in chunk.choices:
                    said[choice.index] += choice.text
                tokens = chunk.usage.prompt_tokens if chunk.usage else tokens
            # then: all but one found what the first of them computed
            assert tokens > 100
            assert looked_up - before == CHOICES * tokens
            assert found == (CHOICES - 1) * ((tokens - 1) // BLOCK * BLOCK)
            # and at the other worker too
            looked_up, found = cache(second)
            assert looked_up > CHOICES * tokens
            assert found >= (CHOICES - 1) * (tokens // BLOCK * BLOCK)
            # and each says what a single request with its seed says
            alone = [ask(ai, PROMPT, SEED + number).choices[0].text for number in range(CHOICES)]
            assert said == alone
            assert len(set(alone)) == CHOICES
