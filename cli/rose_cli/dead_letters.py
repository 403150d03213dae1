"""`rose dead-letters`: list, show, retry, purge."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rose.errors import BrokerUnavailable, InvalidParameter, RoseError
from rose_cli.common import AsJson, Queue, RedisUrl, complain, given, out, print_json
from rose_producer.dead_letters import DeadLetter, DeadLetters
from rose_producer.settings import ProducerSettings

letters = typer.Typer(
    help="Jobs that could not run: look at them, run them again, drop them. A dead letter's handle "
    "is PARTITION:ENTRY, such as 0:1700000000000-0, as `list` prints it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Handle = Annotated[str, typer.Argument(help="Which, as `list` prints it.")]
Handles = Annotated[list[str] | None, typer.Argument(help="Which, as `list` prints them.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Code = Annotated[str | None, typer.Option(help="Only those of this code, such as crash_loop.")]

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN_OF_MESSAGE = 60


@letters.command(name="list")
def list_letters(
    limit: Annotated[int, typer.Option(min=1, help="Most to show.")] = 50,
    code: Code = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""
    table = Table("handle", "when", "job", "code", "message", "bytes", box=None)
    with _dead(redis_url, queue) as dead:
        for letter in dead.list(code=code, limit=limit):
            if as_json:
                print_json(_facts(letter))
                continue
            message = letter.message
            if len(message) > _SHOWN_OF_MESSAGE:
                message = message[: _SHOWN_OF_MESSAGE - 1] + "…"
            cells = (letter.handle, _when(letter), letter.job_id or "-", letter.code, message)
            table.add_row(*map(_plain, cells), str(len(letter.job)))
    if table.row_count:
        # Rows of a narrow terminal wrap, so that a handle can always be copied whole.
        Console(highlight=False, width=max(out.width, 180)).print(table)
    elif not as_json:
        out.print("no dead letters")


@letters.command()
def show(
    handle: Handle,
    prompt: Annotated[bool, typer.Option("--prompt", help="Show the prompt too.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Only the job's bytes, prompt and all.")
    ] = False,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Show all of a dead letter; of its prompt only the size, unless asked."""
    with _dead(redis_url, queue) as dead:
        letter = dead.get(handle)
    if raw:
        sys.stdout.buffer.write(letter.job)
        sys.stdout.buffer.flush()
        return
    facts = _facts(letter) | _content(letter, with_prompt=prompt)
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in (facts | {"at_ms": _when(letter)}).items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
        table.add_row({"at_ms": "when"}.get(name, name.replace("_", " ")), _plain(shown))
    out.print(table)


@letters.command()
def retry(
    handles: Handles = None,
    everything: All = False,
    code: Code = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Run jobs again, as new jobs with ids of their own; prints old id -> new id.

    A job that cannot be decoded cannot run: its letter stays, with an error. A deadline that has
    passed is dropped; queue limits do not count.
    """
    refusals: list[RoseError] = []
    with _dead(redis_url, queue) as dead:
        for handle in _chosen(dead, handles, everything, code):
            try:
                again = dead.retry(handle)
            except BrokerUnavailable:
                raise
            except RoseError as error:
                refusals.append(error)
                continue
            if as_json:
                print_json(asdict(again))
            else:
                typer.echo(f"{again.job_id} -> {again.new_id}")
    for refusal in refusals[:-1]:
        complain(refusal)
    if refusals:
        raise refusals[-1]


@letters.command()
def purge(
    handles: Handles = None,
    everything: All = False,
    code: Code = None,
    older_than: Annotated[
        str | None, typer.Option(help="With --all: only those this old, such as 7d, 12h, 30m, 45s.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters: the jobs in them are gone for good."""
    _check_choice(handles, everything, code or older_than)
    age_s = 0.0 if older_than is None else _seconds(older_than)
    _confirm(yes, "these" if handles else "all such" if code or older_than else "all")
    with _dead(redis_url, queue) as dead:
        gone = dead.purge(handles) if handles else dead.purge_all(code=code, older_than_s=age_s)
    if as_json:
        print_json({"purged": gone})
    else:
        typer.echo(f"{gone} dead letters purged")


def _dead(redis_url: str | None, queue: str | None) -> DeadLetters:
    return DeadLetters(ProducerSettings(**given(redis_url=redis_url, queue=queue)))


def _check_choice(handles: list[str] | None, everything: bool, filtered: object) -> None:
    if bool(handles) == everything:
        raise InvalidParameter("name dead letters by their handles, or say --all: one of the two")
    if handles and filtered:
        raise InvalidParameter("--code and --older-than choose among all: use them with --all")


def _chosen(
    dead: DeadLetters, handles: list[str] | None, everything: bool, code: str | None
) -> Iterable[str]:
    """Oldest first of all: in the order in which they came."""
    _check_choice(handles, everything, code)
    return handles or reversed([letter.handle for letter in dead.list(code=code)])


def _confirm(yes: bool, which: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidParameter("purge deletes jobs for good and there is nobody to ask: say --yes")
    typer.confirm(f"Delete {which} dead letters for good?", abort=True)


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if match is None:
        raise InvalidParameter(f"--older-than {age}: must be like 7d, 12h, 30m or 45s")
    return float(match[1]) * _UNIT_S[match[2]]


def _facts(letter: DeadLetter) -> dict[str, Any]:
    facts = asdict(letter)
    return facts | {"bytes": len(facts.pop("job"))}


def _content(letter: DeadLetter, *, with_prompt: bool) -> dict[str, Any]:
    try:
        job = letter.decode().model_dump(mode="json", exclude_defaults=True)
    except RoseError as error:
        return {"cannot_be_decoded": {"error": error.code, "message": str(error)}}
    if not with_prompt:
        size = len(json.dumps(job["prompt"], ensure_ascii=False).encode())
        job["prompt"] = f"({size} bytes as JSON: --prompt shows it)"
    return {"job": job}


def _when(letter: DeadLetter) -> str:
    try:
        at = datetime.fromtimestamp(letter.at_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{letter.at_ms} ms"  # an entry id that somebody chose
    return at.isoformat(sep=" ", timespec="seconds")


def _plain(value: str) -> Text:
    """As it is, but for control characters: they are the sender's, and this is your terminal."""
    return Text("".join(c if c.isprintable() else ascii(c)[1:-1] for c in value))
