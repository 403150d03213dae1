"""Our gateway beside vLLM's own server, the same model and load tool (`vllm bench serve`), one run.

    python -m benchmarks.servers --vllm PYTHON_OF_VLLM --model FOLDER [--rounds N] [--requests N]
        [--prompt-tokens N] [--new-tokens N] [--concurrency N] [--dtype TYPE]
        [--json FILE]

The servers take turns: between its turns a server is stopped. Behind the gateway are Redis and a
worker, and every token goes through the log. Prompts are random tokens; greedy, and no answer ends
early.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import environment
from benchmarks.runner import Runner, exit_on_sigterm, options
from benchmarks.servers.contenders import Ours, Vllm
from benchmarks.servers.load import Load, Requests

_CASES = ("many", "one")
_CONTEXT = 2048


def main() -> None:
    args = _arguments()
    facts = environment("benchmarks.servers", ("torch", "transformers", "fastapi", "uvicorn"), {})
    batch, lengths = args.concurrency, (args.prompt_tokens, args.new_tokens)
    with ExitStack() as stack:
        ours = stack.enter_context(Ours(args.model, batch, _CONTEXT, args.dtype))
        vllm = Vllm(args.vllm, args.model, batch, _CONTEXT, args.dtype)
        theirs = stack.enter_context(vllm)
        runner = Runner(facts, args.rounds or 3, args.json, base=Vllm.name)
        sizes = {"many": (args.requests, batch), "one": (max(1, args.requests // 16), 1)}
        for name in args.only:
            count, clients = sizes[name]
            requests = Requests(count, *lengths)
            case = Load([ours, theirs], args.vllm, args.model, requests, clients)
            runner.measure(name, case)


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.servers", __doc__, _CASES)
    add = parser.add_argument
    add("--vllm", type=Path, required=True, metavar="PYTHON", help="of vLLM's environment")
    add("--model", type=Path, required=True, help="a folder")
    add("--requests", type=int, default=64)
    add("--prompt-tokens", type=int, default=64)
    add("--new-tokens", type=int, default=64)
    add("--concurrency", type=int, default=32)
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of both")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()
