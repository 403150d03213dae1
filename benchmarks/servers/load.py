"""Requests to each server in turn, by vLLM's load tool."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board import Board, above, below
from benchmarks.runner import Case, in_turn
from benchmarks.servers.contenders import Ours, Server, Vllm, vllm_environment, vllm_program

_LOAD_S = 900
RATE = "tokens/s"

#: What the load tool reports, and what we call it.
_FIGURES = {
    "output_throughput": RATE,
    "median_ttft_ms": "time to first token, p50, ms",
    "p99_ttft_ms": "time to first token, p99, ms",
    "median_itl_ms": "between tokens, p50, ms",
    "p99_itl_ms": "between tokens, p99, ms",
}


@dataclass(frozen=True, slots=True)
class Requests:
    """So many requests, each with so many random tokens, and as many new ones as it says."""

    count: int
    prompt_tokens: int
    new_tokens: int


class Load(Case):
    def __init__(
        self,
        servers: Sequence[Server],
        python: Path,
        model: Path,
        requests: Requests,
        clients: int,
    ) -> None:
        """`python`: of vLLM's environment; `model`: a folder, whose tokenizer the tool reads."""
        self.title = f"{clients} at once" if clients > 1 else "One after another"
        self._servers, self._requests, self._clients = servers, requests, clients
        self._python, self._model = python, model

    def round(self, board: Board, turn: int) -> None:
        for server in in_turn(self._servers, turn):
            server.thaw()
            try:
                board.add(server.name, self._measure(server, turn))
            finally:
                server.freeze()

    def judge(self, board: Board) -> None:
        for metric in _FIGURES.values():
            target = above(1) if metric == RATE else below(1)
            ours, theirs = (metric, Ours.name), (metric, Vllm.name)
            board.check_ratio(f"{metric}: roseinfer to vLLM", ours, theirs, target)

    def _measure(self, server: Server, turn: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
            done = subprocess.run(
                [*self._command(server, turn), "--result-dir", folder],
                env=vllm_environment(self._python),
                capture_output=True,
                text=True,
                timeout=_LOAD_S,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"the load tool ended: {done.stderr[-2000:]}")
            result: dict[str, Any] = json.loads(Path(folder, "result").read_text())
        self._check(result, server)
        return {metric: float(result[key]) for key, metric in _FIGURES.items()}

    def _command(self, server: Server, turn: int) -> list[str]:
        requests = self._requests
        command = [str(vllm_program(self._python)), "bench", "serve", "--backend", "openai"]
        command += ["--base-url", server.url, "--model", server.model]
        command += ["--tokenizer", str(self._model), "--dataset-name", "random"]
        command += ["--random-input-len", str(requests.prompt_tokens)]
        command += ["--random-output-len", str(requests.new_tokens), "--ignore-eos"]
        command += ["--num-prompts", str(requests.count), "--max-concurrency", str(self._clients)]
        command += ["--seed", str(turn + 1), "--temperature", "0", "--disable-tqdm"]
        command += ["--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"]
        return [*command, "--save-result", "--save-detailed", "--result-filename", "result"]

    def _check(self, result: dict[str, Any], server: Server) -> None:
        """Raises: RuntimeError: it did less than it was asked to."""
        count = self._requests.count
        tokens = count * self._requests.new_tokens
        if result["completed"] != count or result["total_output_tokens"] != tokens:
            errors = "; ".join(error.strip()[-300:] for error in result["errors"] if error)
            raise RuntimeError(
                f"{server.name} answered {result['completed']} of {count} requests with "
                f"{result['total_output_tokens']} of {tokens} tokens: {errors}"
            )
