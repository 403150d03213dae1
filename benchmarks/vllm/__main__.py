"""vLLM behind the queue beside vLLM alone: `LLM.generate`, and `vllm serve`, in one run.

    PYTHON_OF_VLLM -m benchmarks.vllm --model FOLDER [--only generate,many] [--rounds N]
        [--dtype NAME] [--requests N] [--eager] [--json FILE]

It runs in vLLM's own environment, where our packages are too: `make test-vllm` makes one. One
worker serves the queue, and the gateway too. All contenders have the same variables, limits and
requests; they take turns, and between its turns each is stopped.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from transformers import AutoConfig

from benchmarks.engine.contenders.vllm import Vllm as InProcess
from benchmarks.engine.contenders.vllm import in_process, preloads
from benchmarks.report import environment
from benchmarks.runner import Runner, exit_on_sigterm, options
from benchmarks.servers.contenders import Ours, Vllm
from benchmarks.servers.load import Load, Requests
from benchmarks.vllm.generate import PLAIN, SAMPLING, Contender, Generate, Generation, ThroughQueue

_CASES = ("generate", "many")
_CONTEXT = 2048
_CACHE_GIB = 1
_PYTHON = Path(sys.executable)


def main() -> None:
    args = _arguments()
    facts = environment("benchmarks.vllm", ("vllm", "torch", "transformers", "redis"), {})
    runner = Runner(facts, args.rounds or 3, args.json)
    facts["vLLM preloads"] = ", ".join(path.name for path in preloads(_PYTHON)) or "nothing"
    shape = args.batch, _CONTEXT
    with ExitStack() as stack:
        runner.say("starting a worker with vLLM")
        ours = stack.enter_context(
            Ours(
                args.model,
                *shape,
                args.dtype,
                engine="vllm",
                cuda_graphs=not args.eager,
                environment=in_process(preloads(_PYTHON), _CACHE_GIB),
            )
        )
        if "generate" in args.only:
            _generate(runner, ours, args)
        if "many" in args.only:
            runner.say("starting vllm serve")
            theirs = stack.enter_context(
                Vllm(_PYTHON, args.model, *shape, args.dtype, eager=args.eager)
            )
            requests = Requests(args.requests, 64, 64)
            load = Load([ours, theirs], _PYTHON, args.model, requests, args.batch)
            runner.measure("many", load, base=Vllm.name)


def _generate(runner: Runner, ours: Ours, args: argparse.Namespace) -> None:
    contenders: list[Contender] = [ThroughQueue(ours)]
    with ExitStack() as stack:
        for name, rose_sampling in ((PLAIN, False), (SAMPLING, True)):
            runner.say(f"starting {name}")
            vllm = InProcess(
                _PYTHON,
                args.model,
                args.dtype,
                _CONTEXT,
                args.batch,
                rose_sampling=rose_sampling,
                eager=args.eager,
                cache_gib=_CACHE_GIB,
            )
            contenders.append(Generate(name, stack.enter_context(vllm)))
        vocabulary = AutoConfig.from_pretrained(args.model).vocab_size
        case = Generation(contenders, vocabulary, args.batch, args.max_tokens)
        runner.measure("generate", case, base=PLAIN)


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.vllm", __doc__, _CASES)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="a folder")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    add("--eager", action="store_true", help="none is compiled, so all start in half a minute")
    add("--batch", type=int, default=32, help="requests at once")
    add("--max-tokens", type=int, default=128, help="of a request, to generate")
    add("--requests", type=int, default=64, help="in a round of many")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
