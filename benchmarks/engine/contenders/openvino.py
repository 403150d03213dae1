"""OpenVINO GenAI in an environment of its own."""

import subprocess
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.engine.contenders.frozen import FrozenProcess, plain_environment
from roseinfer.demo_model import MODEL_PATH

#: What `optimum-cli export openvino` is told, by the format of the weights.
_FORMATS = {
    "bfloat16": ["--weight-format", "fp16"],
    "int8": ["--weight-format", "int8"],
    "int4": ["--weight-format", "int4", "--group-size", "64", "--ratio", "1.0"],
}


class OpenVino(FrozenProcess):
    """Computes in bfloat16, with weights of any of `_FORMATS`."""

    def __init__(
        self, python: Path, folder: Path, threads: int, batch: int, step: int, context: int
    ) -> None:
        """`folder`: what `convert` has written, with the name of its format."""
        self.name = f"OpenVINO {folder.name}"
        command = [str(python), "-m", "benchmarks.peers.with_openvino", "--model", str(folder)]
        command += ["--threads", str(threads), "--sequences", str(batch)]
        command += ["--context", str(context), "--step", str(step)]
        super().__init__(self.name, command, plain_environment())


def convert(python: Path, model: Path, folder: Path, weights: str) -> Path:
    """The model in OpenVINO's form, in a part of `folder`. Raises: RuntimeError"""
    if not (model / "tokenizer.json").exists():  # the library will have one
        AutoTokenizer.from_pretrained(MODEL_PATH).save_pretrained(model)
    folder = folder / f"{model.name}-openvino" / weights
    command = [str(python.parent / "optimum-cli"), "export", "openvino", "--model", str(model)]
    command += ["--task", "text-generation-with-past", *_FORMATS[weights], str(folder)]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True)
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"optimum-cli did not convert {model}: {reason}")
    return folder
