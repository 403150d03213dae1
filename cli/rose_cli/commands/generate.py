"""`rose generate`."""

from functools import partial
from typing import Annotated, Any

import typer

from rose_cli.commands import ENGINE, ended_by_ctrl_c, require
from rose_cli.options import AsJson
from rose_cli.output import print_json, print_text, read_stdin
from rose_cli.sampling import with_sampling_options

_model_option = partial(typer.Option, rich_help_panel="Model")


@with_sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from; - reads stdin.")],
    model: Annotated[
        str | None, _model_option(help="Folder, GGUF file or hub name. [a built-in model]")
    ] = None,
    tokenizer: Annotated[
        str | None, _model_option(help="Where it is, if not with the model.")
    ] = None,
    device: Annotated[
        str | None, _model_option(help="cpu, cuda, cuda:1. [cuda, if there is one]")
    ] = None,
    dtype: Annotated[
        str | None,
        _model_option(
            help="float32, bfloat16 or float16. [float32 on a CPU, else the checkpoint's]"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        _model_option(
            help="int8 or int4: weights of 8 or 4 bits; file: those of a quantized file as they "
            "are. On a CPU."
        ),
    ] = None,
    max_context: Annotated[
        int | None, _model_option(min=1, help="Longest prompt and output, in tokens. [the model's]")
    ] = None,
    as_json: AsJson = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Generate without a queue, in this process."""
    require(*ENGINE)
    from roseinfer import SamplingParams
    from roseinfer.checkpoints.sources import check

    params = SamplingParams(**sampling)
    text = read_stdin() if prompt == "-" else prompt
    check(model)
    with ended_by_ctrl_c():
        from roseinfer import InferenceEngine  # takes seconds: not before a mistake is found

    engine = InferenceEngine(
        model, tokenizer, device=device, dtype=dtype, weights=weights, max_context=max_context
    )
    if as_json:
        print_json({"prompt": text, "text": engine.generate(text, params)})
        return
    for piece in engine.stream_generate(text, params):
        print_text(piece, end="")
    print_text("")
