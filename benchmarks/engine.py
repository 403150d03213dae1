"""The engine against its peer in process, and one request against the memory: in one run.

    python -m benchmarks.engine [--rounds N] [--requests N]
        [--model llama-135m|gpt2|qwen3-0.6b] [--dtype float32|bfloat16]

The peer is transformers' `generate` over one static, left-padded batch, which runs until its
longest answer is done; only tokens that were asked for count. Both take turns, so that a machine
whose speed drifts slows both, and ratios are taken round by round. The memory limit is the rate at
which the weights could be read once for each token, at the rate at which a large float32 sum reads.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from transformers import AutoModelForCausalLM

from benchmarks.models import save_gpt2, save_llama_135m, save_qwen3_600m
from benchmarks.service import Workload, run_in_process
from benchmarks.tables import spread
from roseinfer import InferenceEngine, native
from roseinfer.demo_model import MODEL_PATH

_MODELS = {"llama-135m": save_llama_135m, "gpt2": save_gpt2, "qwen3-0.6b": save_qwen3_600m}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SUM_ELEMENTS = 2**28  # 1 GiB of float32, many times any cache
_ALONE_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Round:
    """Generated tokens per second, and the bytes per second that memory gave."""

    ours: float
    generate: float
    alone: float
    memory: float

    def share_of_limit(self, weight_bytes: int) -> float:
        return self.alone * weight_bytes / self.memory


@torch.inference_mode()
def run_generate(model: Any, work: Workload) -> float:
    """transformers' `generate` on the whole workload as one batch; tokens per second."""
    longest = max(len(prompt) for prompt in work.prompts)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in work.prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work.prompts])
    most = max(work.new_tokens)
    began = time.perf_counter()
    model.generate(
        ids,
        attention_mask=mask,
        min_new_tokens=most,
        max_new_tokens=most,
        do_sample=False,
        pad_token_id=0,
    )
    return work.tokens / (time.perf_counter() - began)


def run_alone(engine: InferenceEngine, work: Workload) -> float:
    """Tokens per second of one request, the first prompt's, its prefill included."""
    return run_in_process(engine, Workload(work.prompts[:1], [_ALONE_TOKENS]))


def memory_rate(numbers: torch.Tensor) -> float:
    """Bytes per second that a sum reads."""
    began = time.perf_counter()
    numbers.sum()
    return numbers.nbytes / (time.perf_counter() - began)


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a token needs; of an embedding it needs a row, tied or not."""
    total = sum(p.nbytes for p in model.parameters())
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return int(total if embedding is head else total - embedding.nbytes)


def measure(folder: Path, args: argparse.Namespace, console: Console) -> tuple[list[Round], int]:
    engine = InferenceEngine(folder, tokenizer_name=str(MODEL_PATH), dtype=args.dtype)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=_DTYPES[args.dtype]).eval()
    numbers = torch.ones(_SUM_ELEMENTS)
    rounds = []
    for number in range(args.rounds + 1):  # the first one warms up
        # Another workload for each: nothing is found in the prefix cache.
        work = Workload.draw(args.requests, engine.vocab_size, seed=2 * number)
        single = Workload.draw(1, engine.vocab_size, seed=2 * number + 1)
        this = Round(
            run_in_process(engine, work),
            run_generate(peer, work),
            run_alone(engine, single),
            memory_rate(numbers),
        )
        console.print(
            f"{f'round {number}' if number else 'warm-up'}: ours {this.ours:.0f} tokens/s, "
            f"generate {this.generate:.0f}, one request {this.alone:.1f}, "
            f"memory {this.memory / 1e9:.1f} GB/s"
        )
        rounds.append(this)
    return rounds[1:], weight_bytes(peer)


def show(title: str, rounds: Sequence[Round], weights: int, console: Console) -> None:
    heading = f"{title}, {len(rounds)} rounds, {weights / 1e6:.0f} MB of weights"
    rows = [
        ("ours, tokens/s", [r.ours for r in rounds], 0),
        ("transformers generate, tokens/s", [r.generate for r in rounds], 0),
        ("ratio, round by round", [r.ours / r.generate for r in rounds], 2),
        ("one request, tokens/s", [r.alone for r in rounds], 1),
        ("memory, GB/s", [r.memory / 1e9 for r in rounds], 1),
        ("one request, share of the limit", [r.share_of_limit(weights) for r in rounds], 2),
    ]
    console.print(spread(heading, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--model", choices=[*_MODELS], default="llama-135m")
    parser.add_argument("--dtype", choices=[*_DTYPES], default="bfloat16")
    args = parser.parse_args()
    console = Console(highlight=False)
    console.print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{os.cpu_count()} CPUs, {torch.get_num_threads()} threads, "
        f"compiled kernels: {'yes' if native.available() else 'no'}"
    )
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        rounds, weights = measure(_MODELS[args.model](Path(folder)), args, console)
    show(f"{args.model}, {args.dtype}", rounds, weights, console)


if __name__ == "__main__":
    main()
