"""Builds the cases, one after another: one engine and its peers in memory at a time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.engine.cases.alone import Context, Interference, Waiting
from benchmarks.engine.cases.beside_peers import Batch, Single, weight_bytes
from benchmarks.engine.cases.service import Service, Start, serving
from benchmarks.engine.contenders import Contender
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.contenders.transformers import Continuous, Repadding, Static
from benchmarks.engine.contenders.vllm import Vllm
from benchmarks.engine.scale import Scale
from benchmarks.models import BUILT_IN, model_folder
from benchmarks.report import Facts, environment
from benchmarks.runner import Runner
from roseinfer import native

CASES = ("batch", "single", "start", "waiting", "context", "interference", "service")
PEERS = ("static", "repadding", "continuous")
_MAX_BATCH_SIZE, _MAX_STEP_TOKENS = 32, 512  # the engine's own defaults


def facts() -> Facts:
    here = {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "compiled decoder": native.build_name() or "none",
    }
    return environment("benchmarks.engine", ("torch", "transformers", "redis"), here)


class Suite:
    def __init__(
        self,
        runner: Runner,
        scale: Scale,
        folder: Path,
        vllm: Path | None,
        peers: Sequence[str],
    ) -> None:
        """`folder` takes the models; `peers` beside vLLM, of PEERS."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._runner, self._scale, self._peers, self._vllm = runner, scale, peers, vllm
        self._models = {name: model_folder(name, folder) for name in {*scale.models, BUILT_IN}}

    def run(self, only: Sequence[str]) -> None:
        """Only batch and single vary model and dtype."""
        if {"batch", "single"} & set(only):
            for model in self._scale.models:
                for dtype in self._scale.dtypes:
                    self._beside_peers(only, model, dtype)
                    gc.collect()
        if "start" in only:
            self._runner.measure("start", Start())
        if "waiting" in only:
            ours = self._ours(BUILT_IN, "float32")
            self._runner.measure("waiting", Waiting(ours, self._scale))
        if {"context", "interference", "service"} & set(only):
            self._by_itself(only, self._scale.models[0], self._scale.dtypes[0])

    def _beside_peers(self, only: Sequence[str], model: str, dtype: str) -> None:
        scale, name = self._scale, f"{model}, {dtype}"
        with ExitStack() as stack:
            vllms = [] if self._vllm is None else [self._start_vllm(stack, model, dtype)]
            ours, peer = self._ours(model, dtype), self._load(model, dtype)
            vocabulary = ours.engine.vocab_size
            if "batch" in only:
                contenders: list[Contender] = [ours, *vllms, *self._transformers(peer)]
                title = f"{scale.requests} requests at once: {name}"
                batch = Batch(title, contenders, vocabulary, scale)
                self._runner.measure(f"batch/{model}/{dtype}", batch)
            if "single" in only:
                weights = weight_bytes(peer)
                megabytes = f"{weights / 1e6:.0f} MB of weights"
                title = f"One request, decode steps only: {name}, {megabytes}"
                single = Single(title, [ours, *vllms], vocabulary, weights, scale)
                self._runner.measure(f"single/{model}/{dtype}", single)

    def _transformers(self, model: Any) -> list[Contender]:
        peers: dict[str, Contender] = {
            "static": Static(model),
            "repadding": Repadding(model, _MAX_BATCH_SIZE),
            "continuous": Continuous(model, _MAX_STEP_TOKENS, self._scale.limit_s),
        }
        return [peers[name] for name in self._peers]

    def _by_itself(self, only: Sequence[str], model: str, dtype: str) -> None:
        scale, ours, name = self._scale, self._ours(model, dtype), f"{model}, {dtype}"
        if "context" in only:
            context = Context(f"Context of one request: {name}", ours, scale)
            self._runner.measure("context", context)
        if "interference" in only:
            title = f"8 requests decoding, steps of at most {_MAX_STEP_TOKENS} tokens: {name}"
            self._runner.measure("interference", Interference(title, ours, scale))
        if "service" in only:
            limits = _MAX_BATCH_SIZE, _MAX_STEP_TOKENS
            with serving(self._models[model], dtype, *limits) as redis_url:
                self._runner.measure("service", Service(name, ours, redis_url, scale))

    def _ours(self, model: str, dtype: str) -> Ours:
        return Ours(self._models[model], dtype, _MAX_BATCH_SIZE, _MAX_STEP_TOKENS)

    def _load(self, model: str, dtype: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            self._models[model], dtype=getattr(torch, dtype)
        ).eval()

    def _start_vllm(self, stack: ExitStack, model: str, dtype: str) -> Vllm:
        config = transformers.AutoConfig.from_pretrained(self._models[model])
        limits = config.max_position_embeddings, _MAX_BATCH_SIZE
        self._runner.say("starting vLLM")
        vllm = Vllm(Path(self._vllm or ""), self._models[model], dtype, *limits)
        stack.enter_context(vllm)
        self._runner.facts |= {
            "vllm": vllm.versions["vllm"],
            "vLLM's torch": vllm.versions["torch"],
            "vLLM preloads": ", ".join(path.name for path in vllm.preloaded) or "nothing",
        }
        return vllm
