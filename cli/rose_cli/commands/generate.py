"""`rose generate`."""

from typing import Annotated, Any

import typer

from rose_cli.commands import ENGINE, ended_by_ctrl_c, require
from rose_cli.options import AsJson, Device, Model
from rose_cli.output import print_json, print_text
from rose_cli.sampling import with_sampling_options


@with_sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    model: Model = None,
    device: Device = None,
    weights: Annotated[
        str | None, typer.Option(help="int8 or int4: weights of 8 or 4 bits, on a CPU.")
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
    check(model)
    with ended_by_ctrl_c():
        from roseinfer import InferenceEngine  # takes seconds: not before a mistake is found

    engine = InferenceEngine(model, device=device, weights=weights)
    if as_json:
        print_json({"prompt": prompt, "text": engine.generate(prompt, params)})
        return
    for piece in engine.stream_generate(prompt, params):
        print_text(piece, end="")
    print_text("")
