"""The flags that the command-line programs of this package share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rose.errors import InvalidParameter, RoseError
from rose.sampling import PARAMETERS, SamplingParams
from roseinfer.checkpoints.sources import check

if TYPE_CHECKING:
    from roseinfer import InferenceEngine

DEFAULT_PROMPTS = ("Once upon a time", "One morning", "The old fisherman")

# Numbers and texts. `--stop-on-eos` is `ignore_eos`, the other way round.
_SCHEMA_PARAMETERS = [
    parameter
    for parameter in PARAMETERS
    if parameter.type in (int, float, str)
    and not parameter.takes_several
    and parameter.name != "top_logprobs"
]
#: What greedy decoding would silently ignore.
_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")


def parser(description: str, *, several_prompts: bool) -> argparse.ArgumentParser:
    """A parser with all shared flags, and `--prompts` or `--prompt`, which need not be given."""
    options = argparse.ArgumentParser(description=description)
    if several_prompts:
        options.add_argument(
            "--prompts", nargs="+", default=DEFAULT_PROMPTS, help="texts to continue"
        )
    else:
        options.add_argument(
            "--prompt", default=DEFAULT_PROMPTS[0], help="text to continue (default: %(default)s)"
        )
    _add_model_flags(options)
    _add_sampling_flags(options)
    options.add_argument("--stream", action="store_true", help="print text as it is generated")
    return options


def _add_model_flags(options: argparse.ArgumentParser) -> None:
    model = options.add_argument_group("model")
    model.add_argument(
        "--checkpoint-path",
        help="a model's folder, its GGUF file or its name on the hub (default: the built-in model)",
    )
    model.add_argument("--tokenizer-name", help="where the tokenizer is, if not with the model")
    model.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one)")
    precision = model.add_mutually_exclusive_group()
    precision.add_argument("--no-amp", action="store_true", help="compute in float32")
    precision.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    precision.add_argument(
        "--weights",
        choices=["int8", "int4", "file"],
        help="weights of 8 or 4 bits, or those of a quantized file as they are; on a CPU",
    )


def _add_sampling_flags(options: argparse.ArgumentParser) -> None:
    sampling = options.add_argument_group("sampling")
    sampling.add_argument(
        "--stop-on-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end at the model's end-of-text token (default: yes)",
    )
    sampling.add_argument(
        "--do-sample",
        action="store_true",
        help="draw tokens at random instead of the likeliest",
    )
    for parameter in _SCHEMA_PARAMETERS:
        default = 1.0 if parameter.name == "temperature" else parameter.default
        shown = "" if default is None else f" (default: {default})"
        sampling.add_argument(
            _flag(parameter.name), type=parameter.type, help=parameter.meaning + shown
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def load_engine(arguments: argparse.Namespace) -> InferenceEngine:
    """The engine that the model flags ask for."""
    if arguments.checkpoint_path is not None:
        check(arguments.checkpoint_path)
    # Here and not above: it takes seconds to load, and most mistakes can be seen without it.
    from roseinfer import InferenceEngine

    dtype = "float32" if arguments.no_amp else "bfloat16" if arguments.bf16 else None
    return InferenceEngine(
        arguments.checkpoint_path,
        arguments.tokenizer_name,
        device=arguments.device,
        dtype=dtype,
        weights=arguments.weights,
    )


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters that the sampling flags ask for: greedy unless `--do-sample` is given.

    Raises InvalidParameter for flags that greedy decoding would silently ignore.
    """
    values = {
        parameter.name: value
        for parameter in _SCHEMA_PARAMETERS
        if (value := getattr(arguments, parameter.name)) is not None
    }
    if arguments.do_sample:
        values.setdefault("temperature", 1.0)
    elif ignored := [name for name in _DRAWING if name in values]:
        raise InvalidParameter(f"{', '.join(map(_flag, ignored))} need --do-sample")
    return SamplingParams(**values, ignore_eos=not arguments.stop_on_eos)


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
