"""Embedders beside their peers: the same random weights, one process, texts of mixed lengths.

    python -m benchmarks.encoders [--only minilm,bge,qwen3] [--peers sentence_transformers,...]
        [--texts N] [--rounds N] [--json FILE]

Each shape is measured with one caller and with 32, each with one text at a time. All compute in
float32, but for the contender that says otherwise. One is a worker behind its queue, with
redis-server, worker and callers on this machine. Peers that are not installed are left out:
sentence-transformers, onnxruntime (with onnx and onnxscript), openvino.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.board import Board, at_least, at_most
from benchmarks.encoders.contenders import PEERS, Contender, Ours, Vectors
from benchmarks.encoders.models import SHAPES, save_model, texts
from benchmarks.encoders.queued import Queued
from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, in_turn, options, some_of

RATE, LATENCY, CPU = "texts/s", "a text, ms", "processor time, ms a text"
QUEUED = "more than in process, ms"
OURS = "roseinfer"
_CALLERS = 32
_MIN_GAIN, _MAX_LATENCY, _MAX_QUEUED_MS = 1.3, 1.2, 2.0
_LEAST_COSINE = {"float32": 0.99999, "bfloat16": 0.99}
_WARM_UP_TEXTS = 32


class Embedding(Case):
    """`callers`, each with one text at a time."""

    def __init__(
        self, shape: str, contenders: Sequence[Contender], callers: int, count: int
    ) -> None:
        self.title = f"{shape}, {callers} caller{'s' * (callers > 1)}"
        self._contenders, self._callers, self._count = contenders, callers, count

    def round(self, board: Board, turn: int) -> None:
        count = self._count if turn >= 0 else min(self._count, _WARM_UP_TEXTS)
        work = texts(count, f"round {turn}")
        vectors = dict[str, Vectors]()
        for contender in in_turn(self._contenders, turn):
            began, used = time.perf_counter(), time.process_time()
            vectors[contender.name] = contender.embed(work, self._callers)
            seconds, used = time.perf_counter() - began, time.process_time() - used
            figures = {} if isinstance(contender, Queued) else {CPU: 1e3 * used / count}
            if self._callers == 1:
                figures[LATENCY] = 1e3 * seconds / count
            else:
                figures[RATE] = count / seconds
            board.add(contender.name, figures)
        if self._callers == 1 and Queued.name in vectors:
            took = [board.rows[LATENCY, name][-1] for name in (Queued.name, OURS)]
            board.add(Queued.name, {QUEUED: took[0] - took[1]})
        _compare(vectors)

    def judge(self, board: Board) -> None:
        if (QUEUED, Queued.name) in board.rows:
            board.check_figure((QUEUED, Queued.name), at_most(_MAX_QUEUED_MS))
        for peer in [one.name for one in self._contenders if not isinstance(one, Ours | Queued)]:
            if self._callers == 1:
                target = at_most(_MAX_LATENCY)
                board.check_ratio(f"to {peer}", (LATENCY, OURS), (LATENCY, peer), target)
            else:
                board.check_ratio(f"to {peer}", (RATE, OURS), (RATE, peer), at_least(_MIN_GAIN))


def _compare(vectors: dict[str, Vectors]) -> None:
    """Raises: RuntimeError: they do not compute the same, so their times say nothing."""
    for name, theirs in vectors.items():
        least = _LEAST_COSINE["bfloat16" if "bfloat16" in name else "float32"]
        cosine = float((vectors[OURS] * theirs).sum(1).min())
        if not cosine >= least or not np.allclose((theirs**2).sum(1), 1, atol=1e-3):
            raise RuntimeError(f"{name} has other vectors than ours: a cosine is {cosine:.6f}")


def contenders_of(folder: Path, peers: Sequence[str], queued: Queued) -> list[Contender]:
    ours = [Ours(folder), Ours(folder, "bfloat16"), queued]
    return [*ours, *(PEERS[name](folder) for name in peers)]


def main() -> None:
    args = _arguments()
    installed = [name for name in args.peers if find_spec(name) is not None]
    packages = ("torch", "transformers", *(name.replace("_", "-") for name in installed))
    facts = environment("benchmarks.encoders", packages, {})
    runner = Runner(facts, args.rounds or 3, args.json, base=OURS)
    for shape in args.only:
        with tempfile.TemporaryDirectory() as parent:
            folder = save_model(Path(parent, "model"), shape)
            with Queued(folder) as queued:
                contenders = contenders_of(folder, installed, queued)
                for callers, count in ((1, max(1, args.texts // 4)), (_CALLERS, args.texts)):
                    case = Embedding(shape, contenders, callers, count)
                    runner.measure(f"{shape} {callers}", case)


def _arguments() -> argparse.Namespace:
    shapes = [shape for shape in SHAPES if shape != "tiny"]
    parser = options("benchmarks.encoders", __doc__, shapes)
    add = parser.add_argument
    add("--peers", type=some_of(PEERS, or_none=True), default=list(PEERS), help="beside ours")
    add("--texts", type=int, default=256, help="of 32 callers; one has a quarter")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
