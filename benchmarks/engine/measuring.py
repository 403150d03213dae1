"""Builds the cases, one after another, and lets their contenders take turns."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from transformers import AutoModelForCausalLM

from benchmarks.board import Board
from benchmarks.engine.cases import Case
from benchmarks.engine.cases.batch import Batch
from benchmarks.engine.cases.growth import Context, Waiting, powers_of_two
from benchmarks.engine.cases.interference import Interference
from benchmarks.engine.cases.service import Service, serving
from benchmarks.engine.cases.single import Single, weight_bytes
from benchmarks.engine.cases.start import Start
from benchmarks.engine.contenders import Contender
from benchmarks.engine.contenders.continuous import Continuous
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.contenders.repadding import Repadding
from benchmarks.engine.contenders.static import Static
from benchmarks.engine.contenders.vllm import Vllm
from benchmarks.engine.scale import Scale
from benchmarks.models import BUILT_IN, model_folder
from benchmarks.report import Facts, environment
from roseinfer import native

CASES = ("batch", "single", "start", "waiting", "context", "interference", "service")
PEERS = ("static", "repadding", "continuous")
_MAX_BATCH_SIZE, _MAX_STEP_TOKENS = 32, 512  # the engine's own defaults
_CONTINUOUS_ROUNDS = 1


class Measuring:
    def __init__(
        self,
        scale: Scale,
        folder: Path,
        vllm: Path | None,
        vllm_modes: str,
        peers: Sequence[str] = PEERS,
    ) -> None:
        """`folder` takes the models; `peers` beside vLLM, of PEERS."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._scale, self._vllm, self._peers = scale, vllm, peers
        self._eager = {"compiled": [False], "eager": [True], "both": [False, True]}[vllm_modes]
        self._models = {name: model_folder(name, folder) for name in {*scale.models, BUILT_IN}}
        self.boards: dict[str, Board] = {}
        self.versions: dict[str, str] = {}
        self._progress = Console(stderr=True, highlight=False, soft_wrap=True)

    def facts(self) -> Facts:
        here = {
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": str(torch.get_num_threads()),
            "compiled decoder": native.build_name() or "none",
        }
        return environment("benchmarks.engine", ("torch", "transformers", "redis"), here)

    def run(self, only: Sequence[str]) -> Iterator[Board]:
        """Each case's board, as soon as it is full. Only batch and single vary model and dtype."""
        for model in self._scale.models:
            for dtype in self._scale.dtypes:
                if {"batch", "single"} & set(only):
                    yield from self._beside_peers(only, model, dtype)
                    gc.collect()
        if "start" in only:
            yield self._measure("start", Start())
        if "waiting" in only:
            ours = self._ours(BUILT_IN, "float32")
            waiting = Waiting(ours, self._scale.waiting, self._scale.waiting_tokens)
            yield self._measure("waiting", waiting)
        if {"context", "interference", "service"} & set(only):
            yield from self._by_itself(only, self._scale.models[0], self._scale.dtypes[0])

    def _beside_peers(self, only: Sequence[str], model: str, dtype: str) -> Iterator[Board]:
        scale, name = self._scale, f"{model}, {dtype}"
        with ExitStack() as stack:
            vllms = [] if self._vllm is None else self._start_vllms(stack, model, dtype)
            ours, peer = self._ours(model, dtype), self._load(model, dtype)
            vocabulary = ours.engine.vocab_size
            if "batch" in only:
                peers: dict[str, Contender] = {
                    "static": Static(peer),
                    "repadding": Repadding(peer, _MAX_BATCH_SIZE),
                    "continuous": Continuous(
                        peer, _CONTINUOUS_ROUNDS, _MAX_STEP_TOKENS, scale.limit_s
                    ),
                }
                contenders: list[Contender] = [ours, *vllms]
                contenders += [peers[name] for name in self._peers]
                title = f"{scale.requests} requests at once: {name}"
                batch = Batch(title, contenders, vocabulary, scale.requests, scale.most_tokens)
                yield self._measure(f"batch/{model}/{dtype}", batch)
            if "single" in only:
                weights = weight_bytes(peer)
                single = Single(
                    f"One request, decode steps only: {name}, {weights / 1e6:.0f} MB of weights",
                    [ours, *vllms],
                    vocabulary=vocabulary,
                    weight_bytes=weights,
                    new_tokens=scale.single_tokens,
                    sum_elements=scale.sum_elements,
                )
                yield self._measure(f"single/{model}/{dtype}", single)

    def _by_itself(self, only: Sequence[str], model: str, dtype: str) -> Iterator[Board]:
        scale, ours, name = self._scale, self._ours(model, dtype), f"{model}, {dtype}"
        if "context" in only:
            contexts = powers_of_two(scale.first_context, ours.engine.context_length)
            title = f"Context of one request: {name}"
            yield self._measure("context", Context(title, ours, contexts, scale.context_steps))
        if "interference" in only:
            title = f"8 requests decoding, steps of at most {_MAX_STEP_TOKENS} tokens: {name}"
            case = Interference(title, ours, scale.arrivals, scale.arrival_tokens)
            yield self._measure("interference", case)
        if "service" in only:
            limits = _MAX_BATCH_SIZE, _MAX_STEP_TOKENS
            with serving(self._models[model], dtype, *limits) as redis_url:
                title = f"Through Redis, {scale.requests} streaming subscribers: {name}"
                service = Service(
                    title,
                    ours,
                    redis_url,
                    requests=scale.requests,
                    most_tokens=scale.most_tokens,
                    singles=scale.first_tokens,
                )
                yield self._measure("service", service)

    def _measure(self, key: str, case: Case) -> Board:
        columns = TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=self._progress, transient=True) as progress:
            task = progress.add_task(f"{case.title}: warming up", total=None)
            case.round(Board(case.title), -1)
            board = self.boards[key] = Board(case.title)
            for turn in range(self._scale.rounds):
                said = f"{case.title}: round {turn + 1} of {self._scale.rounds}"
                progress.update(task, description=said)
                case.round(board, turn)
        case.judge(board)
        return board

    def _ours(self, model: str, dtype: str) -> Ours:
        return Ours(self._models[model], dtype, _MAX_BATCH_SIZE, _MAX_STEP_TOKENS)

    def _load(self, model: str, dtype: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            self._models[model], dtype=getattr(torch, dtype)
        ).eval()

    def _start_vllms(self, stack: ExitStack, model: str, dtype: str) -> list[Vllm]:
        config = transformers.AutoConfig.from_pretrained(self._models[model])
        started = []
        for eager in self._eager:
            self._progress.print(f"starting vLLM, {'eager' if eager else 'compiled'}")
            vllm = Vllm(
                Path(self._vllm or ""),
                self._models[model],
                dtype,
                config.max_position_embeddings,
                _MAX_BATCH_SIZE,
                eager=eager,
            )
            started.append(stack.enter_context(vllm))
            self.versions |= _named(vllm.versions)
            names = ", ".join(path.name for path in vllm.preloaded) or "nothing"
            self.versions["vLLM preloads"] = names
        return started


def _named(versions: Mapping[str, str]) -> dict[str, str]:
    return {"vllm": versions["vllm"], "vLLM's torch": versions["torch"]}
