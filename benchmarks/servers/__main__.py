"""Our door beside vLLM's own server, the same model and load tool (`vllm bench serve`), one run.

    python -m benchmarks.servers --vllm PYTHON_OF_VLLM --model FOLDER [--rounds N] [--requests N]
        [--prompt-tokens N] [--new-tokens N] [--concurrency N] [--write PAGE] [--json FILE]

The servers take turns: between its turns a server is stopped. Behind the door stand Redis and a
worker, and every token goes through the log. Prompts are random tokens; greedy, and no answer ends
early.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.board import Board, above, below
from benchmarks.report import environment
from benchmarks.runner import Case, Runner, exit_on_sigterm, in_turn, options
from benchmarks.servers.contenders import Ours, Server, Vllm, vllm_environment, vllm_program

_CASES = ("many", "one")
_CONTEXT = 2048
_LOAD_S = 900

#: What the load tool reports, and what we call it.
_FIGURES = {
    "output_throughput": "tokens/s",
    "median_ttft_ms": "time to first token, p50, ms",
    "p99_ttft_ms": "time to first token, p99, ms",
    "median_itl_ms": "between tokens, p50, ms",
    "p99_itl_ms": "between tokens, p99, ms",
}


class Load(Case):
    """Requests to each server in turn."""

    def __init__(self, servers: Sequence[Server], args: argparse.Namespace, clients: int) -> None:
        self.title = f"{clients} at once" if clients > 1 else "One after another"
        self._servers, self._args, self._clients = servers, args, clients

    def round(self, board: Board, turn: int) -> None:
        for server in in_turn(self._servers, turn):
            server.thaw()
            try:
                board.add(server.name, self._measure(server, turn))
            finally:
                server.freeze()

    def judge(self, board: Board) -> None:
        for metric in _FIGURES.values():
            target = above(1) if metric == "tokens/s" else below(1)
            ours, theirs = (metric, Ours.name), (metric, Vllm.name)
            board.check_ratio(f"{metric}: roseinfer to vLLM", ours, theirs, target)

    def _measure(self, server: Server, turn: int) -> dict[str, float]:
        args = self._args
        requests = args.requests if self._clients > 1 else max(1, args.requests // 16)
        with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
            command = [str(vllm_program(args.vllm)), "bench", "serve", "--backend", "openai"]
            command += ["--base-url", server.url, "--model", server.model]
            command += ["--tokenizer", str(args.model), "--dataset-name", "random"]
            command += ["--random-input-len", str(args.prompt_tokens)]
            command += ["--random-output-len", str(args.new_tokens), "--ignore-eos"]
            command += ["--num-prompts", str(requests), "--max-concurrency", str(self._clients)]
            command += ["--seed", str(turn + 1), "--temperature", "0", "--disable-tqdm"]
            command += ["--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"]
            command += ["--save-result", "--save-detailed", "--result-dir", folder]
            command += ["--result-filename", "result"]
            done = subprocess.run(
                command,
                env=vllm_environment(args.vllm),
                capture_output=True,
                text=True,
                timeout=_LOAD_S,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"the load tool ended: {done.stderr[-2000:]}")
            result: dict[str, Any] = json.loads(Path(folder, "result").read_text())
        _check(result, server, requests, requests * args.new_tokens)
        return {metric: float(result[key]) for key, metric in _FIGURES.items()}


def _check(result: dict[str, Any], server: Server, requests: int, tokens: int) -> None:
    """Raises: RuntimeError: it did less than it was asked to."""
    if result["completed"] != requests or result["total_output_tokens"] != tokens:
        said = "; ".join(error.strip()[-300:] for error in result["errors"] if error)
        raise RuntimeError(
            f"{server.name} answered {result['completed']} of {requests} requests with "
            f"{result['total_output_tokens']} of {tokens} tokens: {said}"
        )


def main() -> None:
    args = _arguments()
    facts = environment("benchmarks.servers", ("torch", "transformers", "fastapi", "uvicorn"), {})
    batch = args.concurrency
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(args.model, batch, _CONTEXT))
        theirs = stack.enter_context(Vllm(args.vllm, args.model, batch, _CONTEXT))
        runner = Runner(facts, args.rounds or 3, args.json, base=Vllm.name)
        cases = {"many": Load([ours, theirs], args, batch), "one": Load([ours, theirs], args, 1)}
        for name in args.only:
            runner.measure(name, cases[name])
    if args.write:
        runner.write(args.write, "benchmarks.servers")


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.servers", __doc__, _CASES)
    add = parser.add_argument
    add("--vllm", type=Path, required=True, metavar="PYTHON", help="of vLLM's environment")
    add("--model", type=Path, required=True, help="a folder")
    add("--requests", type=int, default=64)
    add("--prompt-tokens", type=int, default=64)
    add("--new-tokens", type=int, default=64)
    add("--concurrency", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
