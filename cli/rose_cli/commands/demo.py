"""`rose demo`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rose_cli.options import AsJson
from rose_cli.requirements import ENGINE, require


def demo(
    full_speed: Annotated[
        bool, typer.Option(help="As fast as the tiny model goes, too fast to read.")
    ] = False,
    fake_redis: Annotated[
        bool, typer.Option(help="Use the embedded stand-in though there is a redis-server.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See it at work: streams, a worker killed in mid-sentence, and no token lost or doubled."""
    require(*ENGINE)
    from rose_cli.demo.run import run_demo

    if not run_demo(full_speed=full_speed, fake_redis=fake_redis, as_json=as_json):
        sys.exit(1)
