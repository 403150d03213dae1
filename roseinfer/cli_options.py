"""The flags that the command-line programs of this package share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rose.errors import InvalidParameter, RoseError
from roseinfer.params import SamplingParams
from roseinfer.sources import resolve

if TYPE_CHECKING:
    from roseinfer import InferenceEngine


def parser(description: str, *, several_prompts: bool) -> argparse.ArgumentParser:
    """A parser with all shared flags, and `--prompts` or `--prompt`."""
    options = argparse.ArgumentParser(description=description)
    if several_prompts:
        options.add_argument("--prompts", nargs="+", required=True, help="texts to continue")
    else:
        options.add_argument("--prompt", required=True, help="text to continue")
    _add_model_flags(options)
    _add_sampling_flags(options)
    options.add_argument("--stream", action="store_true", help="print text as it is generated")
    return options


def _add_model_flags(options: argparse.ArgumentParser) -> None:
    model = options.add_argument_group("model")
    model.add_argument(
        "--checkpoint-path",
        help="a model's folder or its name on the hub (default: the built-in model)",
    )
    model.add_argument("--tokenizer-name", help="where the tokenizer is, if not with the model")
    model.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    precision = model.add_mutually_exclusive_group()
    precision.add_argument("--no-amp", action="store_true", help="compute in float32")
    precision.add_argument("--bf16", action="store_true", help="compute in bfloat16")


def _add_sampling_flags(options: argparse.ArgumentParser) -> None:
    sampling = options.add_argument_group("sampling")
    sampling.add_argument("--max-new-tokens", type=int, default=64, help="(default: %(default)s)")
    sampling.add_argument(
        "--stop-on-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end at the model's end-of-text token (default: yes)",
    )
    sampling.add_argument(
        "--do-sample", action="store_true", help="draw tokens at random instead of the likeliest"
    )
    sampling.add_argument("--temperature", type=float, help="with --do-sample (default: 1.0)")
    sampling.add_argument("--top-k", type=int, help="draw from the k likeliest tokens")
    sampling.add_argument("--top-p", type=float, help="draw from the likeliest of this total")
    sampling.add_argument("--min-new-tokens", type=int, default=0, help="do not end before")
    sampling.add_argument(
        "--repetition-penalty", type=float, default=1.0, help="above 1: less of prompt and output"
    )
    sampling.add_argument(
        "--presence-penalty", type=float, default=0.0, help="above 0: less of the output"
    )
    sampling.add_argument(
        "--frequency-penalty", type=float, default=0.0, help="the same, each time that it came"
    )
    fitting = sampling.add_mutually_exclusive_group()
    fitting.add_argument("--json-schema", help="generate JSON of this schema (JSON text)")
    fitting.add_argument("--regex", help="generate what this expression matches")
    fitting.add_argument("--grammar", help="generate what this Lark grammar describes")


def load_engine(arguments: argparse.Namespace) -> InferenceEngine:
    """The engine that the model flags ask for."""
    if arguments.checkpoint_path is not None:
        resolve(arguments.checkpoint_path)
    # Here and not above: it takes seconds to load, and most mistakes can be seen without it.
    from roseinfer import InferenceEngine

    dtype = "float32" if arguments.no_amp else "bfloat16" if arguments.bf16 else None
    return InferenceEngine(
        arguments.checkpoint_path, arguments.tokenizer_name, device=arguments.device, dtype=dtype
    )


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters that the sampling flags ask for: greedy unless `--do-sample` is given.

    Raises InvalidParameter for flags that greedy decoding would silently ignore.
    """
    shaping = (arguments.temperature, arguments.top_k, arguments.top_p)
    if not arguments.do_sample and any(value is not None for value in shaping):
        raise InvalidParameter("--temperature, --top-k and --top-p need --do-sample")
    temperature = 1.0 if arguments.temperature is None else arguments.temperature
    return SamplingParams(
        max_new_tokens=arguments.max_new_tokens,
        temperature=temperature if arguments.do_sample else 0.0,
        top_k=arguments.top_k,
        top_p=1.0 if arguments.top_p is None else arguments.top_p,
        ignore_eos=not arguments.stop_on_eos,
        min_new_tokens=arguments.min_new_tokens,
        repetition_penalty=arguments.repetition_penalty,
        presence_penalty=arguments.presence_penalty,
        frequency_penalty=arguments.frequency_penalty,
        json_schema=arguments.json_schema,
        regex=arguments.regex,
        grammar=arguments.grammar,
    )


def run(
    program: Callable[[argparse.Namespace], None],
    options: argparse.ArgumentParser,
    argv: Sequence[str] | None,
) -> int:
    """Run `program`; a mistake of the user's is one line on stderr and exit status 2."""
    arguments = options.parse_args(argv)
    try:
        program(arguments)
    except RoseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
