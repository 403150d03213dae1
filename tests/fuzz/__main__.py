"""`python -m tests.fuzz`: run it, and say what came of it."""

import json
import secrets
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rose.errors import RoseError
from tests.fuzz.run import Report, fuzz


def main(
    messages: Annotated[int, typer.Option(min=1, help="How many.")] = 1_000_000,
    seed: Annotated[int | None, typer.Option(help="Have a run again; else a new one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send damaged messages through a real worker, and account for every one of them."""
    seed = secrets.randbits(32) if seed is None else seed
    typer.echo(f"seed {seed}", err=True)
    try:
        report = fuzz(messages, seed)
    except RoseError as error:
        typer.echo(f"fuzz: {error}", err=True)
        sys.exit(1)
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        _show(report)
    sys.exit(0 if report.ok else 1)


def _show(report: Report) -> None:
    table = Table(show_header=False, box=None)
    for outcome, count in report.outcomes.items():
        table.add_row(outcome, f"{count:,}")
    for outcome, count in report.listeners.items():
        table.add_row(f"subscriber: {outcome}", f"{count:,}")
    table.add_row("messages", f"{report.messages:,}")
    table.add_row("seconds", f"{report.seconds:.1f}")
    table.add_row("per second", f"{report.messages / report.seconds:,.0f}")
    start, most, end = report.worker_rss_mb
    table.add_row("worker's memory, MB: at first, most, at last", f"{start}, {most}, {end}")
    console = Console(highlight=False)
    console.print(table)
    for problem in report.problems:
        console.print(f"WRONG: {problem}", markup=False)
    console.print("no worker died, and every message is accounted for" if report.ok else "FAILED")


if __name__ == "__main__":
    typer.run(main)
