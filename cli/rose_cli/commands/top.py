"""`rose top`."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from rose.errors import ConfigurationError
from rose_cli.options import AsJson, Queue, RedisUrl, settings_of
from rose_cli.output import print_json
from rose_cli.tables import console, print_drawing, terminal_width
from rose_cli.top.frames import Frame, Top, addresses
from rose_cli.top.view import draw, export
from rose_producer import Client


def top(
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="HOST or HOST:PORT of workers and gateways; a name may stand for many."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 1.0,
    frames: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One frame: --frames 1.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write the last frame as a picture.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Watch the queue and its workers: batches, tokens per second, what waits, leases."""
    count = 1 if once else frames
    places = addresses(metrics or ["127.0.0.1"])
    last: Frame | None = None
    live = console.is_terminal and count is None
    with (
        Client(settings_of(redis_url, queue)) as client,
        _display(live=live, as_json=as_json) as show,
    ):
        try:
            for last in _frames(Top(client, places), count, interval):
                show(last)
        except KeyboardInterrupt:
            if count is not None:
                raise
    if svg is not None and last is not None:
        _write(svg, export(last))


def _frames(top: Top, count: int | None, interval: float) -> Iterator[Frame]:
    top.frame()  # rates are differences
    for _ in itertools.count() if count is None else range(count):
        time.sleep(interval)
        yield top.frame()


@contextmanager
def _display(*, live: bool, as_json: bool) -> Iterator[Callable[[Frame], None]]:
    """What shows a frame."""
    if as_json:
        yield lambda frame: print_json(asdict(frame))
    elif live:
        with Live(console=console, screen=True, auto_refresh=False) as view:
            yield lambda frame: view.update(draw(frame, *console.size), refresh=True)
    else:
        yield lambda frame: print_drawing(draw(frame, terminal_width()))


def _write(file: Path, picture: str) -> None:
    try:
        file.write_text(picture)
    except OSError as error:
        raise ConfigurationError(f"--svg {file}: {error.strerror}") from None
