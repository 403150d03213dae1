"""Whether the time to the first token tells that somebody else has sent a prompt before.

    python -m benchmarks.engine.prefix_timing --pairs 2000
    python -m benchmarks.engine.prefix_timing --engine vllm
    python -m benchmarks.engine.prefix_timing --engine placed --pairs 500
    python -m benchmarks.engine.prefix_timing --second-tier

Of each pair of prompts of one length a neighbour sends one; then a guesser sends both, in either
order. The area under the ROC curve is how often the neighbour's prompt is the faster one: 0.5 where
nothing can be told, near 1 where the prefix is shared. vLLM runs the built-in model, behind the
worker's interface. `placed`: through the queue to two workers of it that place jobs by the
beginnings of their prompts, from submit to the first token. With a second tier, which is for
`rose` and `placed`, caches hold one prompt, so what is found is in files.
"""

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.queue.stage import fresh_redis
from rose.protocol import JobSpec
from rose.sampling import SamplingParams
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from rose_worker.settings import WorkerSettings
from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.kv_cache.second_tier import SecondTierOptions
from roseinfer.model.attention import IMPLEMENTATION
from tests.support.engines import set_variables

_VOCABULARY = 512
_TIER_BYTES = 2**28
_FLUSH_S = 60.0

#: Seconds to the first token of a prompt that runs alone, with a salt.
Timed = Callable[[list[int], str], float]


def own_engine(length: int, folder: Path | None) -> Timed:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=1024,
        )
    )
    model.eval().set_attn_implementation(IMPLEMENTATION)
    engine = InferenceEngine(
        loaded=LoadedModel(model, None, "random", fingerprint="random"),
        kv_cache_tokens=length + 1 if folder else 16_384,
        second_tier=SecondTierOptions(_TIER_BYTES, folder) if folder else None,
    )
    scheduler = OnlineScheduler(engine, keep_finished=False)

    def first_token_s(prompt: list[int], salt: str) -> float:
        session = engine.new_session(
            prompt, params=SamplingParams(max_new_tokens=1), cache_salt=salt
        )
        began = time.perf_counter()
        scheduler.add_session(session)
        while scheduler.has_unfinished():
            scheduler.step()
        seconds = time.perf_counter() - began
        if engine.second_tier.tier is not None:
            engine.second_tier.tier.flush(_FLUSH_S)
            pool = engine.cache.pool
            pool.release(pool.allocate(pool.total))  # what another request would evict
        return seconds

    return first_token_s


def vllm() -> Timed:
    set_variables()
    from rose_worker.vllm import loader

    settings = WorkerSettings(
        engine="vllm",
        max_batch_size=8,
        max_context=512,
        cuda_graphs=False,
        vllm_args="--block-size 32 --num-gpu-blocks-override 512",
    )
    engine = loader(settings)()
    numbers = itertools.count()

    def first_token_s(prompt: list[int], salt: str) -> float:
        params = SamplingParams(max_new_tokens=1)
        job = JobSpec(
            id=f"job-{next(numbers)}", prompt=tuple(prompt), sampling=params, cache_salt=salt
        )
        session = engine.prepare(job, ())
        began = time.perf_counter()
        engine.add(session)
        while engine.has_work:
            engine.step()
        return time.perf_counter() - began

    return first_token_s


def placed(stack: ExitStack, length: int, folder: Path | None) -> Timed:
    broker = stack.enter_context(fresh_redis())
    settings: dict[str, Any] = {"placement_s": 2.0, "log_level": "warning"}
    if folder:
        settings |= {"kv_cache_tokens": length + 16, "second_tier_bytes": _TIER_BYTES}
        settings |= {"second_tier_folder": str(folder)}
    for number in range(2):
        worker = WorkerProcess(f"worker-{number}", broker.url, **settings)
        stack.enter_context(worker).wait_ready()
    client = stack.enter_context(Client(redis_url=broker.url))
    while not client.queue_status().places:
        time.sleep(0.1)

    def first_token_s(prompt: list[int], salt: str) -> float:
        began = time.perf_counter()
        job = client.submit(prompt, max_new_tokens=1, ignore_eos=True, cache_salt=salt)
        next(iter(job.stream()))
        seconds = time.perf_counter() - began
        job.result()
        return seconds

    first_token_s([3], "warm")
    return first_token_s


def area_under_curve(sent: list[float], unsent: list[float]) -> float:
    """How often a prompt that a neighbour sent is faster than one that nobody did."""
    ranked = sorted([(t, True) for t in sent] + [(t, False) for t in unsent], reverse=True)
    slower = wins = 0
    for _, was_sent in ranked:
        if was_sent:
            wins += slower
        else:
            slower += 1
    return wins / (len(sent) * len(unsent))


def measured(first_token_s: Timed, pairs: int, length: int, guesser: str) -> float:
    draw = random.Random(pairs)  # noqa: S311 - prompts, no secret
    sent, unsent = list[float](), list[float]()
    for _ in range(pairs):
        known, other = ([draw.randrange(3, _VOCABULARY) for _ in range(length)] for _ in range(2))
        first_token_s(known, "neighbour/")
        guesses = [(known, sent), (other, unsent)]
        draw.shuffle(guesses)
        for prompt, times in guesses:
            times.append(first_token_s(prompt, guesser))
    return area_under_curve(sent, unsent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--length", type=int, help="tokens of a prompt; 129, placed 449")
    parser.add_argument("--engine", choices=("rose", "vllm", "placed"), default="rose")
    parser.add_argument("--second-tier", action="store_true")
    arguments = parser.parse_args()
    # A prompt shorter than a KiB has no beginning by which it could be placed.
    length = arguments.length or (449 if arguments.engine == "placed" else 129)
    with ExitStack() as stack:
        folder = None
        if arguments.second_tier:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="rose-timing-"))
            folder = Path(made, "tier")
        engines: dict[str, Callable[[], Timed]] = {
            "rose": partial(own_engine, length, folder),
            "vllm": vllm,
            "placed": partial(placed, stack, length, folder),
        }
        _compare(engines[arguments.engine](), arguments.pairs, length)


def _compare(first_token_s: Timed, most_pairs: int, length: int) -> None:
    for name, guesser, pairs in (
        ("another salt", "guesser/", most_pairs),
        ("the same salt", "neighbour/", most_pairs // 10),
    ):
        area = measured(first_token_s, pairs, length, guesser)
        print(f"{name}: {pairs} pairs, area under the curve {area:.3f}", flush=True)


if __name__ == "__main__":
    main()
