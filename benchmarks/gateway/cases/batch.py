"""A file of requests: `rose batch run`, and the same jobs submitted with the Python client."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.board import Board, Target
from benchmarks.gateway.cases.streams import CLIENT
from benchmarks.gateway.stage import PROMPT, stage
from benchmarks.runner import AsyncCase, in_turn

LINES = "lines/s"
TOKENS = "tokens/s"
BATCH = "rose batch run"


@dataclass(frozen=True, slots=True)
class Batch(AsyncCase):
    """`lines` of `tokens` each, from a file to a file."""

    title: str
    lines: int
    tokens: int
    target: Target | None = None
    """of the command's lines/s to the client's"""
    worker: dict[str, Any] = field(default_factory=dict)

    async def measure(self, board: Board, turn: int) -> None:
        with stage(**self.worker) as everything, tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            source = folder / "in.jsonl"
            self._write(source, everything.model, self.lines)
            few = folder / "few.jsonl"
            self._write(few, everything.model, 32)
            await everything.batch_by_hand(few, folder / "warm.jsonl")
            for name in in_turn((CLIENT, BATCH), turn):
                measured = everything.batch_run if name == BATCH else everything.batch_by_hand
                output = folder / f"{name}.jsonl"
                seconds = await measured(source, output)
                self._check(output)
                rate = self.lines / seconds
                board.add(name, {LINES: rate, TOKENS: rate * self.tokens})

    def judge(self, board: Board) -> None:
        if self.target is not None:
            rows = (LINES, BATCH), (LINES, CLIENT)
            board.check_ratio("lines/s: rose batch run to Python client", *rows, self.target)

    def _write(self, path: Path, model: str, lines: int) -> None:
        with path.open("w") as file:
            for number in range(lines):
                body = {
                    "model": model,
                    "prompt": f"{PROMPT}{number} ",
                    "max_tokens": self.tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                }
                line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions"}
                file.write(json.dumps({**line, "body": body}) + "\n")

    def _check(self, output: Path) -> None:
        """Raises: RuntimeError: answers are missing."""
        answers = output.read_bytes().splitlines()
        ids = [json.loads(answer)["custom_id"] for answer in answers]
        if ids != [f"c{number}" for number in range(self.lines)]:
            raise RuntimeError(f"{len(ids)} answers of {self.lines} came, or in another order")
