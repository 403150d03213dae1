"""What quantized weights cost in quality: perplexity, greedy agreement and divergence from float32.

    python -m benchmarks.quality [--tokens N] [--model FOLDER --text FILE | --random NAME]

The built-in model reads texts of its own generator, by a seed that training did not use; another
model reads a file, and of a GGUF file the weights as they lie in it are scored too; a shape with
random weights reads random tokens. Each token of the text is predicted from those before it in its
window. Figures do not depend on the load of the machine.
"""

import argparse
import gc
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.models import ON_CPU, model_folder
from benchmarks.workload import random_prompt
from roseinfer import InferenceEngine
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.quantization import FROM_FILE
from roseinfer.sessions.session import Chunk
from training.stories import documents

WINDOW = 256
_HELD_OUT_SEED = 1_000_003
_FORMATS = (("float32", None), ("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "int4"))


@dataclass
class Score:
    """Sums over the tokens that were predicted."""

    tokens: int = 0
    loss: float = 0.0
    same: int = 0
    divergence: float = 0.0

    def add(self, logits: Tensor, exact: Tensor, ids: Tensor) -> None:
        """`logits` and `exact`, float32's, [n, V], predict `ids` [n]."""
        own, other = logits.double().log_softmax(-1), exact.double().log_softmax(-1)
        self.tokens += len(ids)
        self.loss -= float(own.gather(1, ids[:, None]).sum())
        self.same += int((own.argmax(-1) == other.argmax(-1)).sum())
        self.divergence += float((other.exp() * (other - own)).sum())

    def row(self, name: str) -> str:
        perplexity = math.exp(self.loss / self.tokens)
        share, divergence = self.same / self.tokens, self.divergence / self.tokens
        return f"| {name} | {perplexity:.4g} | {share:.4f} | {divergence:.2g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000, help="that are predicted, at most")
    parser.add_argument("--model", type=Path, help="a folder or GGUF file; if not the built-in one")
    parser.add_argument("--text", type=Path, help="what another model reads")
    parser.add_argument("--random", choices=ON_CPU, help="random weights of this shape")
    args = parser.parse_args()
    if (args.model is None) != (args.text is None) or (args.model and args.random):
        parser.error("--model and --text belong together, and not to --random")
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        if args.random is None:
            _print(args.model, None, lambda engine: _windows(engine, args.text, args.tokens))
        else:
            random = model_folder(args.random, Path(folder))
            _print(random, str(MODEL_PATH), lambda engine: _random_windows(engine, args.tokens))


def _print(
    model: Path | None, tokenizer: str | None, find: Callable[[InferenceEngine], list[list[int]]]
) -> None:
    """One engine at a time: a machine need not hold all of them. `find`: the windows to read."""
    kept = (("bfloat16", FROM_FILE),) if model is not None and model.is_file() else ()
    windows, exact = list[list[int]](), list[Tensor]()
    for dtype, weights in (*_FORMATS, *kept):
        engine = InferenceEngine(
            model,
            tokenizer,
            device="cpu",
            dtype=dtype,
            weights=weights,
            kv_cache_tokens=2 * WINDOW,
        )
        if not exact:
            windows = find(engine)
            exact = [logits_of(engine, ids) for ids in windows]
            tokens = sum(len(logits) for logits in exact)
            print(f"{engine.model_name}, {tokens:,} tokens in windows of {WINDOW}:\n")
            print("| weights | perplexity | same greedy token as float32 | KL from float32 |")
            print("| --- | --- | --- | --- |", flush=True)
        score = Score()
        for ids, of_float32 in zip(windows, exact, strict=True):
            score.add(logits_of(engine, ids), of_float32, torch.tensor(ids[1:]))
        print(score.row(weights or dtype), flush=True)
        del engine
        gc.collect()


def _windows(engine: InferenceEngine, text: Path | None, tokens: int) -> list[list[int]]:
    if text is None:
        return held_out(engine, tokens)
    return windows_of(engine.encode(text.read_text(encoding="utf-8")), tokens)


def _random_windows(engine: InferenceEngine, tokens: int) -> list[list[int]]:
    return windows_of(random_prompt(tokens, engine.vocab_size, seed="quality"), tokens)


def held_out(engine: InferenceEngine, tokens: int) -> list[list[int]]:
    """Windows of texts that the built-in model was not trained with."""
    ids: list[int] = []
    for document in documents(_HELD_OUT_SEED):
        ids += engine.encode(document.prompt + document.text)
        if len(ids) > tokens:
            break
    return windows_of(ids, tokens)


def windows_of(ids: list[int], tokens: int) -> list[list[int]]:
    starts = range(0, min(tokens, len(ids)) - 1, WINDOW)
    return [ids[start : min(start + WINDOW, tokens)] for start in starts]


def logits_of(engine: InferenceEngine, ids: list[int]) -> Tensor:
    """Float32 [n - 1, V]: what is predicted after each id but the last."""
    session, pool = engine.new_session(ids[:-1]), engine.cache.pool
    session.blocks += pool.allocate(session.blocks_wanted(len(ids), pool.block_size))
    _, logits = engine._runner.run([Chunk(session, len(ids) - 1)], every_row=True)
    session.release_blocks(pool)
    return logits.float()


if __name__ == "__main__":
    main()
