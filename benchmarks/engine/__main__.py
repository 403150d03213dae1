"""The engine beside its peers, by itself, and in its service: in one run.

    python -m benchmarks.engine [--only batch,single,...] [--model NAME ...] [--dtype NAME ...]
        [--rounds N] [--requests N] [--vllm PYTHON] [--llama-cpp PYTHON]
        [--ik-llama-cpp PYTHON] [--openvino PYTHON] [--gguf FILE] [--json FILE]

Contenders take turns; ratios are taken round by round. Each model has random weights of a real
shape. vLLM takes part where `--vllm` names the Python of an environment that has it, and llama.cpp,
its fork ik_llama.cpp and OpenVINO GenAI where their options do. The case `gguf` gives both of us
the file that `--gguf` names.
"""

import argparse
import gc
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks.engine.cases.alone import Context, Waiting
from benchmarks.engine.cases.beside_peers import Batch, LongPrompts, Single, weight_bytes
from benchmarks.engine.cases.interference import Interference
from benchmarks.engine.cases.prefill import Prefill, products
from benchmarks.engine.cases.quantized import Asked, Perplexity, Quantized
from benchmarks.engine.cases.service import Service, Start, serving
from benchmarks.engine.cases.speculation import (
    PLAIN,
    SPECULATING,
    TRAINED,
    OwnDrafts,
    Speculation,
    TrainedDrafts,
)
from benchmarks.engine.contenders import Contender, Course, Streaming, Traffic
from benchmarks.engine.contenders.llama_cpp import LlamaCpp
from benchmarks.engine.contenders.openvino import OpenVino, convert
from benchmarks.engine.contenders.ours import Ours
from benchmarks.engine.contenders.transformers import Continuous, Repadding, Static
from benchmarks.engine.contenders.vllm import Vllm
from benchmarks.engine.scale import FULL, TINY, Scale
from benchmarks.models import (
    BUILT_IN,
    DRAFTING,
    NAMES,
    gguf_file,
    model_folder,
    with_draft_layer,
)
from benchmarks.quality import WINDOW, held_out
from benchmarks.report import environment
from benchmarks.runner import Runner, exit_on_sigterm, options, some_of
from benchmarks.workload import LONGEST
from roseinfer import InferenceEngine, native
from roseinfer.model.quantization import FROM_FILE

_CASES = (
    "batch",
    "single",
    "quantized",
    "long",
    "gguf",
    "prefill",
    "start",
    "waiting",
    "context",
    "interference",
    "speculation",
    "own-drafts",
    "service",
)
_PEERS = ("static", "repadding", "continuous")
#: The engine's own defaults.
_LIMITS = _MAX_BATCH_SIZE, _MAX_STEP_TOKENS = 32, 512
_SCALES = {"full": FULL, "tiny": TINY}

_PLAIN = "bfloat16"
#: Beside llama.cpp's type of as many bits.
_LLAMA_CPP = {"int8": "Q8_0", "int4": "Q4_0"}
_FORMATS = (_PLAIN, *_LLAMA_CPP)
_LONG_FORMATS = (_PLAIN, "int8")
_ASKED = (Asked("int8", _PLAIN, 1.6, 1.0), Asked("int4", _PLAIN, 2.2, 1.0))
_ASKED_PEERS = (
    Asked("int8", "llama.cpp Q8_0", 1.5, 5.0),
    Asked("int4", "llama.cpp Q4_0", 1.8, 5.0),
    *(Asked(weights, f"ik_llama.cpp {kind}", 1.0, 1.0) for weights, kind in _LLAMA_CPP.items()),
    *(Asked(weights, f"OpenVINO {weights}", 1.0, 1.0) for weights in _FORMATS),
)
_ASKED_SAME_FILE = Asked(Ours.name, "llama.cpp", 1.8, 6.0)


def main() -> None:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as folder:
        suite = Suite(args, _scale(args), Path(folder))
        suite.run(args.only)


class Suite:
    def __init__(self, args: argparse.Namespace, scale: Scale, folder: Path) -> None:
        """`folder` takes the models."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        here = {
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": str(torch.get_num_threads()),
            "compiled decoder": native.build_name() or "none",
        }
        facts = environment("benchmarks.engine", ("torch", "transformers", "redis"), here)
        self.runner = Runner(facts, scale.rounds, args.json)
        self._scale, self._peers, self._vllm = scale, args.peers, args.vllm
        self._llama_cpp, self._ik_llama_cpp = args.llama_cpp, args.ik_llama_cpp
        self._openvino, self._gguf, self._folder = args.openvino, args.gguf, folder
        self._drafting, self._weights = args.drafting, args.formats
        needed = {*scale.models, BUILT_IN} | ({scale.long_model} if "long" in args.only else set())
        self._models = {name: model_folder(name, folder) for name in needed}

    @property
    def _cache_tokens(self) -> int:
        """Enough for all requests of a workload."""
        return self._scale.requests * LONGEST

    def run(self, only: Sequence[str]) -> None:
        """Only batch, single and prefill vary model and dtype, and quantized the model."""
        if {"batch", "single"} & set(only):
            for model in self._scale.models:
                for dtype in self._scale.dtypes:
                    self._beside_peers(only, model, dtype)
                    gc.collect()
        if "quantized" in only and native.available():
            for model in self._scale.models:
                self._quantized(model)
                gc.collect()
        if "long" in only and native.available():
            self._long(self._scale.long_model)
        if "gguf" in only and self._gguf and self._llama_cpp and native.available():
            self._same_file()
        if "prefill" in only and native.available():
            for model in self._scale.models:
                for dtype in self._scale.dtypes:
                    self._prefill(model, dtype)
        if "start" in only:
            self.runner.measure("start", Start())
        if "waiting" in only:
            ours = self._ours(BUILT_IN, "float32")
            self.runner.measure("waiting", Waiting(ours, self._scale))
        if "own-drafts" in only and native.available():
            self._own_drafts()
        if {"context", "interference", "speculation", "service"} & set(only):
            self._by_itself(only, self._scale.models[0], self._scale.dtypes[0])

    def _own_drafts(self) -> None:
        if self._drafting is not None:
            self._trained_drafts(self._drafting)
            return
        model = self._scale.drafting_model
        loaded = with_draft_layer(DRAFTING[model]())
        engine = InferenceEngine(loaded=loaded, kv_cache_tokens=4_096)
        title = f"A model's own drafts, decode steps only, dictated texts: {model}, {_PLAIN}"
        self.runner.measure("own-drafts", OwnDrafts(title, engine, self._scale))

    def _trained_drafts(self, folder: Path) -> None:
        options: dict[str, Any] = {"dtype": _PLAIN, "kv_cache_tokens": 4_096}
        plain = InferenceEngine(folder, **options)
        drafting = InferenceEngine(folder, own_drafts=True, **options)
        engines = {PLAIN: plain, SPECULATING: plain, TRAINED: drafting}
        title = f"A trained model's own drafts, whole answers: {folder.name}, {_PLAIN}"
        self.runner.measure("own-drafts", TrainedDrafts(title, engines, self._scale))

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
                self.runner.measure(f"batch/{model}/{dtype}", batch)
            if "single" in only:
                weights = weight_bytes(peer)
                megabytes = f"{weights / 1e6:.0f} MB of weights"
                title = f"One request, decode steps only: {name}, {megabytes}"
                single = Single(title, [ours, *vllms], vocabulary, weights, scale)
                self.runner.measure(f"single/{model}/{dtype}", single)

    def _quantized(self, model: str) -> None:
        requests = self._scale.requests
        with ExitStack() as stack:
            peers = self._start_peers(stack, model, self._weights, requests, LONGEST)
            ours = self._formats(model, self._weights, self._cache_tokens)
            title = f"Weights of 8 and 4 bits, {requests} requests and one: {model}"
            asked = [one for one in _ASKED if {one.name, one.base} <= set(self._weights)]
            asked += _asked_of(peers)
            vocabulary = ours[0].engine.vocab_size
            case = Quantized(title, [*ours, *peers], asked, vocabulary, self._scale)
            self.runner.measure(f"quantized/{model}", case)

    def _long(self, model: str) -> None:
        context = self._scale.long_prompts[-1] + self._scale.long_tokens
        with ExitStack() as stack:
            peers = self._start_peers(stack, model, _LONG_FORMATS, 1, context)
            ours = self._formats(model, _LONG_FORMATS, 2 * context)
            asked = {one.base: one.name for one in _asked_of(peers)}
            vocabulary = ours[0].engine.vocab_size
            title = f"Long prompts, one request: {model}"
            case = LongPrompts(title, [*ours, *peers], asked, vocabulary, self._scale)
            self.runner.measure(f"long/{model}", case)

    def _formats(self, model: str, formats: Sequence[str], cache_tokens: int) -> list[Ours]:
        return [
            Ours(
                *(self._models[model], _PLAIN, *_LIMITS, None if weights == _PLAIN else weights),
                name=weights,
                cache_tokens=cache_tokens,
            )
            for weights in formats
        ]

    def _start_peers(
        self, stack: ExitStack, model: str, formats: Sequence[str], requests: int, context: int
    ) -> list[Streaming]:
        """Those with weights of `formats`, for so many requests of at most `context` tokens.

        To be called before any engine takes memory: to write a file takes several times its size.
        """
        programs = {"llama.cpp": self._llama_cpp, "ik_llama.cpp": self._ik_llama_cpp}
        kinds = [_LLAMA_CPP[x] for x in formats if x in _LLAMA_CPP and any(programs.values())]
        files = {kind: gguf_file(model, self._folder, kind) for kind in kinds}
        converted = [
            convert(self._openvino, self._models[model], self._folder, weights)
            for weights in (formats if self._openvino else ())
        ]
        peers: list[Streaming] = [
            self._start_llama_cpp(stack, f"{name} {kind}", python, file, requests, context)
            for name, python in programs.items()
            if python is not None
            for kind, file in files.items()
        ]
        for folder in converted:
            limits = torch.get_num_threads(), requests, _MAX_STEP_TOKENS, context
            peer = stack.enter_context(OpenVino(self._openvino, folder, *limits))
            self.runner.facts |= {"openvino-genai": peer.greeting["version"]}
            peers.append(peer)
        return peers

    def _same_file(self) -> None:
        own: dict[str, Any] = {"tokenizer": None, "cache_tokens": self._cache_tokens}
        ours = Ours(self._gguf, _PLAIN, *_LIMITS, FROM_FILE, **own)
        plain = Ours(self._gguf, _PLAIN, *_LIMITS, name=_PLAIN, **own)
        name, scale = self._gguf.name, self._scale
        with ExitStack() as stack:
            peer = self._start_llama_cpp(
                *(stack, _ASKED_SAME_FILE.base, self._llama_cpp, self._gguf),
                *(scale.requests, WINDOW),
            )
            contenders: list[Streaming] = [ours, plain, peer]
            title = f"The same file, {scale.requests} requests and one: {name}"
            vocabulary = ours.engine.vocab_size
            case = Quantized(title, contenders, [_ASKED_SAME_FILE], vocabulary, scale)
            self.runner.measure("gguf", case)
            windows = held_out(ours.engine, scale.text_tokens)
            title = f"The same file, {scale.text_tokens:,} tokens of held-out stories: {name}"
            self.runner.measure("gguf/perplexity", Perplexity(title, ours, plain, peer, windows), 1)

    def _prefill(self, model: str, dtype: str) -> None:
        config = transformers.AutoConfig.from_pretrained(self._models[model])
        title = f"Products of a prefill, one layer: {model}, {dtype}"
        case = Prefill(title, products(config), getattr(torch, dtype), self._scale)
        self.runner.measure(f"prefill/{model}/{dtype}", case)

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
            self.runner.measure("context", context)
        if "interference" in only:
            self._interference(ours, model, dtype)
        if "speculation" in only:
            title = f"Speculation, decode steps only, dictated texts: {name}"
            self.runner.measure("speculation", Speculation(title, ours, scale))
        if "service" in only:
            with serving(self._models[model], dtype, *_LIMITS) as redis_url:
                self.runner.measure("service", Service(name, ours, redis_url, scale))

    def _interference(self, ours: Ours, model: str, dtype: str) -> None:
        scale, base = self._scale, f"{Ours.name}, no target"
        title = f"{scale.decoding} requests decoding, prompts of {scale.arrival_tokens:,} tokens "
        title += f"arriving: {model}, {dtype}"
        serve: dict[str, Callable[[Traffic], Course]] = {
            Ours.name: ours.serve,
            base: partial(ours.serve, itl_target_ms=0),
        }
        with ExitStack() as stack:
            if self._vllm is not None:
                serve[Vllm.name] = self._start_vllm(stack, model, dtype).serve
            vocabulary = ours.engine.vocab_size
            case = Interference(title, serve, Ours.name, base, vocabulary, scale)
            self.runner.measure("interference", case)

    def _ours(self, model: str, dtype: str) -> Ours:
        return Ours(self._models[model], dtype, *_LIMITS)

    def _load(self, model: str, dtype: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            self._models[model], dtype=getattr(torch, dtype)
        ).eval()

    def _start_vllm(self, stack: ExitStack, model: str, dtype: str) -> Vllm:
        config = transformers.AutoConfig.from_pretrained(self._models[model])
        limits = config.max_position_embeddings, _MAX_BATCH_SIZE
        self.runner.say("starting vLLM")
        vllm = Vllm(self._vllm, self._models[model], dtype, *limits)
        stack.enter_context(vllm)
        self.runner.facts |= {
            "vllm": vllm.versions["vllm"],
            "vLLM's torch": vllm.versions["torch"],
            "vLLM preloads": ", ".join(path.name for path in vllm.preloaded) or "nothing",
        }
        return vllm

    def _start_llama_cpp(
        self,
        stack: ExitStack,
        name: str,
        python: Path,
        file: Path,
        requests: int,
        context: int,
    ) -> LlamaCpp:
        peer = LlamaCpp(name, python, file.absolute(), torch.get_num_threads(), requests, context)
        stack.enter_context(peer)
        program = name.split()[0]
        self.runner.facts |= {
            f"{program}'s binding": peer.greeting["version"],
            f"{program}'s instructions": peer.greeting["system"],
        }
        lacks = program == "llama.cpp" and "AMX_INT8 = 1" not in peer.greeting["system"]
        if lacks and native.build_name() == "amx":
            self.runner.say(
                "llama.cpp is compiled without the AMX that this processor has, with which it is "
                "up to twice as fast: see benchmarks/peers/with_llama_cpp.py"
            )
        return peer


def _asked_of(peers: Sequence[Streaming]) -> list[Asked]:
    there = {peer.name for peer in peers}
    return [one for one in _ASKED_PEERS if one.base in there]


def _scale(args: argparse.Namespace) -> Scale:
    scale = _SCALES[args.scale]
    return replace(
        scale,
        rounds=args.rounds or scale.rounds,
        requests=args.requests or scale.requests,
        models=tuple(args.model or scale.models),
        dtypes=tuple(args.dtype or scale.dtypes or [_usual_dtype()]),
        limit_s=args.limit or scale.limit_s,
    )


def _usual_dtype() -> str:
    """Without instructions for it, bfloat16 takes the peers an hour."""
    return "bfloat16" if native.build_name() in ("amx", "avx512_bf16") else "float32"


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.engine", __doc__, _CASES)
    add = parser.add_argument
    add("--model", choices=NAMES, action="append", help="repeatable; llama-135m if not given")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        action="append",
        help="repeatable; if not given bfloat16 on processors that multiply it, else float32",
    )
    add(
        "--peers",
        type=some_of(_PEERS, or_none=True),
        default=_PEERS,
        metavar="NAMES",
        help=f"of transformers, in batch: some of {','.join(_PEERS)}, or '' for vLLM alone",
    )
    add("--requests", type=int, help="at once, in batch and service")
    add("--limit", type=float, help="seconds of a round of transformers' continuous batching")
    add("--vllm", type=Path, metavar="PYTHON", help="of an environment that has vLLM")
    add("--llama-cpp", type=Path, metavar="PYTHON", help="of one that has llama-cpp-python")
    add("--ik-llama-cpp", type=Path, metavar="PYTHON", help="of one with ik_llama.cpp's binding")
    add("--openvino", type=Path, metavar="PYTHON", help="of one with openvino-genai, optimum-intel")
    add("--gguf", type=Path, metavar="FILE", help="for the case gguf: of weights of few bits")
    add(
        "--formats",
        type=some_of(_FORMATS),
        default=_FORMATS,
        metavar="NAMES",
        help=f"of the weights in quantized, for models that do not fit several times: some of "
        f"{','.join(_FORMATS)}",
    )
    add("--drafting", type=Path, metavar="FOLDER", help="for own-drafts: a model with such a layer")
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
