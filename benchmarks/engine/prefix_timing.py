"""Whether the time to the first token tells that somebody else has sent a prompt before.

    python -m benchmarks.engine.prefix_timing --pairs 2000

Of each pair of prompts of one length a neighbour sends one; then a guesser sends both, in either
order. The area under the ROC curve is how often the neighbour's prompt is the faster one: 0.5 where
nothing can be told, near 1 where the prefix is shared.
"""

import argparse
import random
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rose.sampling import SamplingParams
from roseinfer import InferenceEngine, OnlineScheduler

_VOCABULARY = 512


def first_token_s(scheduler: OnlineScheduler, prompt: list[int], salt: str) -> float:
    """Seconds to the first token of a prompt that runs alone."""
    session = scheduler.engine.new_session(
        prompt, params=SamplingParams(max_new_tokens=1), cache_salt=salt
    )
    began = time.perf_counter()
    scheduler.add_session(session)
    while scheduler.has_unfinished():
        scheduler.step()
    return time.perf_counter() - began


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


def measured(scheduler: OnlineScheduler, pairs: int, length: int, guesser: str) -> float:
    draw = random.Random(pairs)  # noqa: S311 - prompts, no secret
    sent, unsent = list[float](), list[float]()
    for _ in range(pairs):
        known, other = ([draw.randrange(3, _VOCABULARY) for _ in range(length)] for _ in range(2))
        first_token_s(scheduler, known, "neighbour/")
        guesses = [(known, sent), (other, unsent)]
        draw.shuffle(guesses)
        for prompt, times in guesses:
            times.append(first_token_s(scheduler, prompt, guesser))
    return area_under_curve(sent, unsent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--length", type=int, default=129, help="tokens of a prompt")
    arguments = parser.parse_args()
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
    engine = InferenceEngine.from_model(model, kv_cache_tokens=16_384)
    scheduler = OnlineScheduler(engine, keep_finished=False)
    for name, guesser, pairs in (
        ("another salt", "guesser/", arguments.pairs),
        ("the same salt", "neighbour/", arguments.pairs // 10),
    ):
        area = measured(scheduler, pairs, arguments.length, guesser)
        print(f"{name}: {pairs} pairs, area under the curve {area:.3f}")


if __name__ == "__main__":
    main()
