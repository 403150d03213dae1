"""llama.cpp in an environment of its own."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.contenders.frozen import FrozenProcess, plain_environment


class LlamaCpp(FrozenProcess):
    """`context`: tokens of a request, and of a window."""

    def __init__(
        self, name: str, python: Path, model: Path, threads: int, batch: int, context: int
    ) -> None:
        self.name = name
        command = [str(python), "-m", "benchmarks.peers.with_llama_cpp", "--model", str(model)]
        command += ["--threads", str(threads), "--sequences", str(batch)]
        command += ["--context", str(context)]
        super().__init__(name, command, plain_environment())

    def loss(self, windows: Sequence[Sequence[int]]) -> float:
        """Minus the sum of the logarithms of the probabilities of all tokens but the first ones."""
        return float(self.ask({"windows": windows})["loss"])
