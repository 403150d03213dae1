"""OpenVINO GenAI as a process that takes turns.

    PYTHON_OF_OPENVINO -m benchmarks.peers.with_openvino --model FOLDER --sequences N ...

    {"prompts": [[...]], "new_tokens": [...]}  ->  {"seconds": ..., "outputs": [[...]]}
    {"prompt": [...], "new_tokens": n}         ->  {"times": [...]}: seconds to each token

The folder is one that `optimum-cli export openvino` has written. It needs nothing but
openvino-genai and this package: the continuous batching of the library does the work.
"""

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.turns import Answers, take_turns

_BLOCK = 32
"""tokens of a block of its cache on CPUs"""


class Pipeline:
    def __init__(self, folder: str, threads: int, sequences: int, context: int, step: int) -> None:
        """`context`: tokens of a sequence. `step`: the most tokens of a step."""
        limits = openvino_genai.SchedulerConfig()
        limits.max_num_seqs, limits.max_num_batched_tokens = sequences, step
        limits.num_kv_blocks = sequences * -(-context // _BLOCK)
        limits.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16"}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, limits, "CPU", properties
        )
        self._requests = 0

    def add(self, prompt: list[int], new_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=new_tokens, ignore_eos=True, do_sample=False
        )
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._requests += 1
        return self._pipeline.add_request(self._requests, ids, config)

    def step(self) -> None:
        self._pipeline.step()

    @property
    def works(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())


def run(pipeline: Pipeline, prompts: list[list[int]], new_tokens: list[int]) -> dict[str, Any]:
    began = time.perf_counter()
    handles = [pipeline.add(*asked) for asked in zip(prompts, new_tokens, strict=True)]
    while pipeline.works:
        pipeline.step()
    seconds = time.perf_counter() - began
    outputs = [list(handle.read_all()[0].generated_ids) for handle in handles]
    return {"seconds": seconds, "outputs": outputs}


def stream(pipeline: Pipeline, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    began, times = time.perf_counter(), []
    handle = pipeline.add(prompt, new_tokens)
    while pipeline.works:
        pipeline.step()
        if handle.can_read():
            handle.read()
            times.append(time.perf_counter() - began)
    return {"times": times}


def answer_to(pipeline: Pipeline, asked: dict[str, Any]) -> dict[str, Any]:
    return run(pipeline, **asked) if "prompts" in asked else stream(pipeline, **asked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    for name in ("threads", "sequences", "context", "step"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    take_turns(partial(_start, args))


def _start(args: argparse.Namespace) -> tuple[dict[str, Any], Answers]:
    pipeline = Pipeline(args.model, args.threads, args.sequences, args.context, args.step)
    version = openvino_genai.__version__
    return {"version": version}, partial(answer_to, pipeline)


if __name__ == "__main__":
    main()
