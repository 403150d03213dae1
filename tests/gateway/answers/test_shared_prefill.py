"""Several choices of a request share one prefill, and say what single requests say."""

from collections import Counter
from typing import Any

from openai import OpenAI

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from tests.support.echo import SLOW, serving
from tests.support.gateway import running_gateway

ENGINE = {"engine": "rose", "device": "cpu", "torch_threads": 1}
PROMPT = "Once upon a time there was a dog who wanted to see the sea. " * 8
CHOICES, SEED, TOKENS, BLOCK = 4, 7, 60, 16


def ask(ai: OpenAI, seed: int, **more: Any) -> Any:
    return ai.completions.create(
        model=ai.models.list().data[0].id,
        prompt=PROMPT,
        seed=seed,
        temperature=0.9,
        max_tokens=TOKENS,
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
        serving("first", broker.url, queue=queue, **ENGINE, **SLOW) as first,
        OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as ai,
    ):
        # when
        answer = ask(ai, SEED, n=CHOICES)
        # then: all but one found what the first of them computed
        tokens = answer.usage.prompt_tokens
        found = (tokens - 1) // BLOCK * BLOCK
        assert found > 64
        assert cache(first) == (CHOICES * tokens, (CHOICES - 1) * found)
        # and each says what a single request with its seed says
        alone = [ask(ai, SEED + number).choices[0].text for number in range(CHOICES)]
        assert [choice.text for choice in answer.choices] == alone
        assert len(set(alone)) == CHOICES

        # when their worker is killed in the middle, and another one takes over
        said, pieces = [""] * CHOICES, Counter[int]()
        stream = iter(ask(ai, SEED, n=CHOICES, stream=True))
        while len(pieces) < CHOICES or min(pieces.values()) < 4:
            (choice,) = next(stream).choices
            said[choice.index] += choice.text
            pieces[choice.index] += 1
        first.kill()
        with serving("second", broker.url, queue=queue, **ENGINE) as second:
            for chunk in stream:
                for choice in chunk.choices:
                    said[choice.index] += choice.text
            # then
            assert said == alone
            looked_up, found = cache(second)
            assert looked_up > CHOICES * tokens
            assert found >= (CHOICES - 1) * (tokens // BLOCK * BLOCK)
