"""llama.cpp, or its fork ik_llama.cpp, as a process that takes turns.

    PYTHON_OF_LLAMA_CPP -m benchmarks.peers.with_llama_cpp --model FILE.gguf --threads N ...

    {"prompts": [[...]], "new_tokens": [...]}  ->  {"seconds": ..., "outputs": [[...]]}
    {"prompt": [...], "new_tokens": n}         ->  {"times": [...]}: seconds to each token
    {"windows": [[...]]}                       ->  {"loss": ...}: minus the sum of the logarithms of
        the probabilities of all tokens but the first ones

It needs nothing but llama-cpp-python, or ik-llama-cpp-python, and this package. It calls the
library's own functions: a batch has the next token of every request, or as much of their prompts as
fits. Sampling is numpy's argmax, which is faster than llama.cpp's.

For a processor with AMX llama.cpp is compiled by clang, for as GCC 12 compiles it, it ends at its
first AMX product. clang 14 spells the macros for AMX otherwise than llama.cpp asks for them, which
leaves it out in silence: CFLAGS and CXXFLAGS must then have -D__AMX_INT8__=1 -D__AMX_TILE__=1
-D__AMX_BF16__=1. ik_llama.cpp has no products on AMX.
"""

import argparse
import ctypes
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.turns import Answers, take_turns

try:
    import llama_cpp
    from llama_cpp import __version__ as version

    is_fork = False
except ImportError:
    from ik_llama_cpp import __version__ as version
    from ik_llama_cpp import _ctypes_api as llama_cpp

    is_fork = True
    # Its binding knows less of the library.
    for name, takes, returns in (
        ("llama_get_logits", [ctypes.c_void_p], ctypes.POINTER(ctypes.c_float)),
        ("llama_print_system_info", [], ctypes.c_char_p),
    ):
        function = getattr(llama_cpp._lib, name)
        function.argtypes, function.restype = takes, returns
        setattr(llama_cpp, name, function)

_BATCH = 2048
"""tokens, llama.cpp's default"""


class Token(NamedTuple):
    id: int
    position: int
    sequence: int
    wanted: bool
    """its logits"""


class Model:
    def __init__(self, path: str, threads: int, sequences: int, context: int) -> None:
        """`context`: tokens of a sequence."""
        options = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(path.encode(), options)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = context * sequences, sequences
        params.n_threads = params.n_threads_batch = threads
        params.n_batch = _BATCH
        if is_fork and sequences > 1:
            params.flash_attn = False  # it asserts with several sequences
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def clear(self) -> None:
        if is_fork:
            llama_cpp.llama_kv_cache_clear(self._context)
        else:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def logits(self, tokens: list[Token]) -> Any:
        """[wanted, vocabulary]; valid until the next call."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token.id, token.position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, token.sequence
            batch.logits[index] = token.wanted
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode: {code}")
        wanted = sum(token.wanted for token in tokens)
        if not wanted:
            return np.empty((0, self._vocabulary), np.float32)
        address = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(address, shape=(wanted, self._vocabulary))

    def greedy(self, tokens: list[Token]) -> dict[int, int]:
        """The next token of each sequence whose logits are wanted."""
        chosen = self.logits(tokens).argmax(axis=1).tolist()
        wanted = [token.sequence for token in tokens if token.wanted]
        return dict(zip(wanted, chosen, strict=True))


def run(model: Model, prompts: list[list[int]], new_tokens: list[int]) -> dict[str, Any]:
    model.clear()
    outputs: list[list[int]] = [[] for _ in prompts]
    began = time.perf_counter()
    waiting = [
        token for number, prompt in enumerate(prompts) for token in as_tokens(prompt, number)
    ]
    while waiting:
        part, waiting = waiting[:_BATCH], waiting[_BATCH:]
        for number, token in model.greedy(part).items():
            outputs[number].append(token)
    while True:
        tokens = [
            Token(made[-1], len(prompts[number]) + len(made) - 1, number, True)
            for number, made in enumerate(outputs)
            if len(made) < new_tokens[number]
        ]
        if not tokens:
            break
        for number, token in model.greedy(tokens).items():
            outputs[number].append(token)
    return {"seconds": time.perf_counter() - began, "outputs": outputs}


def stream(model: Model, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    model.clear()
    times, began = [], time.perf_counter()
    tokens = as_tokens(prompt, 0)
    while len(tokens) > _BATCH:
        model.logits(tokens[:_BATCH])
        tokens = tokens[_BATCH:]
    for position in range(len(prompt), len(prompt) + new_tokens):
        made = model.greedy(tokens)[0]
        times.append(time.perf_counter() - began)
        tokens = [Token(made, position, 0, True)]
    return {"times": times}


def read(model: Model, windows: list[list[int]]) -> dict[str, Any]:
    loss = 0.0
    for ids in windows:
        model.clear()
        tokens = [Token(token, place, 0, True) for place, token in enumerate(ids[:-1])]
        logits = model.logits(tokens).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        totals = np.log(np.exp(logits).sum(axis=1))
        loss += float((totals - logits[np.arange(len(tokens)), ids[1:]]).sum())
    return {"loss": loss}


def as_tokens(prompt: list[int], sequence: int) -> list[Token]:
    last = len(prompt) - 1
    return [Token(token, place, sequence, place == last) for place, token in enumerate(prompt)]


def answer_to(model: Model, asked: dict[str, Any]) -> dict[str, Any]:
    if "windows" in asked:
        return read(model, **asked)
    return run(model, **asked) if "prompts" in asked else stream(model, **asked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    take_turns(partial(_start, args))


def _start(args: argparse.Namespace) -> tuple[dict[str, Any], Answers]:
    model = Model(args.model, args.threads, args.sequences, args.context)
    system = llama_cpp.llama_print_system_info().decode()
    return {"version": version, "system": system}, partial(answer_to, model)


if __name__ == "__main__":
    main()
