"""`rose batch`: a file of requests, each line answered once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.errors import ConfigurationError
from rose_cli.commands import require
from rose_cli.options import AsJson, Queue, RedisUrl, command_group, given
from rose_cli.output import print_result

if TYPE_CHECKING:
    from rose_cli.batch.files import Paths
    from rose_cli.batch.run import Outcome

#: Ended, and lines are in the error file.
_SOME_FAILED = 3

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

batch = command_group()


@batch.callback()
def _batch() -> None:
    """Files of requests, as OpenAI's batches have them. Each line is answered once."""


@batch.command()
def run(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="JSON lines: custom_id, method, url, body.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where answers go, in the order of the lines; - for stdout."
        ),
    ],
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", "-e", help="Where lines without an answer go; else OUTPUT.errors.jsonl."
        ),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, max=10_000, help="Lines that are under way at a time.")
    ] = 256,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, whatever the output holds.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Answer each line of a file, without a gateway.

    Whenever it was interrupted, by Ctrl-C or worse, the same command goes on where it was. Exit
    code 3: all lines are through, and some are in the error file. With -o - it begins anew, and
    needs -e.
    """
    require("fsspec", "platformdirs", "uvloop", extra="gateway")
    from rose_cli.batch.files import STDOUT, Paths

    if output == STDOUT and errors is None:
        raise ConfigurationError("-o - is stdout: say with -e where lines without an answer go")
    paths = Paths(source, output, errors or _errors_beside(output))
    options = given(redis_url=redis_url, queue=queue)
    outcome = _answered(paths, options, window=window, overwrite=overwrite)
    facts = {"output": str(output), "errors": str(paths.errors), **asdict(outcome)}
    stream = sys.stderr if paths.to_stdout else None
    print_result(facts, _summary(outcome, paths.errors), as_json=as_json, file=stream)
    if outcome.failed:
        raise typer.Exit(_SOME_FAILED)


def _answered(paths: Paths, options: dict[str, Any], *, window: int, overwrite: bool) -> Outcome:
    """`options`: settings that were given. Raises: ConfigurationError"""
    from rose_cli.batch.run import run_batch
    from rose_gateway.settings import GatewaySettings

    work = run_batch(GatewaySettings(**options), paths, window=window, overwrite=overwrite)
    goes_on = "" if paths.to_stdout else ": the same command goes on from there"
    try:
        return _run(work, f"interrupted{goes_on}")
    except BrokenPipeError:
        raise  # whoever reads stdout has seen enough
    except OSError as error:
        place = error.filename or paths.output
        raise ConfigurationError(f"{place}: {error.strerror or error}") from None


def _errors_beside(output: Path) -> Path:
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


def _run(work: Coroutine[Any, Any, Outcome], interrupted: str) -> Outcome:
    """SIGINT and SIGTERM end it with everything in its place; a second one ends it at once.
    `interrupted`: the message for that case."""
    import uvloop

    caught: list[signal.Signals] = []

    async def main() -> Outcome:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - it is this one

        def stop(signum: signal.Signals) -> None:
            caught.append(signum)
            task.cancel()
            for handled in _SIGNALS:
                loop.remove_signal_handler(handled)

        for handled in _SIGNALS:
            loop.add_signal_handler(handled, stop, handled)
        return await work

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        if not caught:
            raise
        print(interrupted, file=sys.stderr)
        raise typer.Exit(128 + caught[0]) from None


def _summary(outcome: Outcome, errors: Path) -> str:
    text = f"{outcome.lines:,} lines: {outcome.succeeded:,} answered, {outcome.failed:,} failed"
    if outcome.failed:
        text += f" (see {errors})"
    if outcome.done_before:
        text += f"; {outcome.done_before:,} of them by earlier runs"
    return f"{text}; {outcome.seconds:.1f} s"
