"""`rose dead-letters`: list, show, retry, purge."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from rose.errors import BrokerUnavailable, InvalidParameter, RoseError
from rose_cli.options import AsJson, Queue, RedisUrl, command_group, settings_of
from rose_cli.output import (
    age,
    local_time,
    print_error,
    print_json,
    print_result,
    print_text,
    printable,
)
from rose_cli.tables import Column, facts_table, make_table, print_drawing, terminal_width, wrap
from rose_producer.dead_letters import DeadLetter, DeadLetters

letters = command_group(
    "Jobs that could not run: look at them, run them again, drop them. A dead letter's handle "
    "is PARTITION:ENTRY, such as 0:1700000000000-0, as `list` prints it."
)

Handle = Annotated[str, typer.Argument(help="Which, as `list` prints it.")]
Handles = Annotated[list[str] | None, typer.Argument(help="Which, as `list` prints them.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Code = Annotated[str | None, typer.Option(help="Only those of this code, such as crash_loop.")]

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@letters.command(name="list")
def list_letters(
    limit: Annotated[int, typer.Option(min=1, help="Most to show.")] = 50,
    code: Code = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first."""
    with DeadLetters(settings_of(redis_url, queue)) as dead:
        listed = list(dead.list(code=code, limit=limit))
    if as_json:
        for letter in listed:
            print_json(_facts(letter))
    elif listed:
        print_drawing(table_of(listed, terminal_width()))
    else:
        print_text("no dead letters")


def table_of(listed: Sequence[DeadLetter], width: int) -> Table:
    return make_table(
        [
            Column("handle", [letter.handle for letter in listed]),
            Column("age", [age(letter.at_ms) for letter in listed], right=True),
            Column("code", [printable(letter.code) for letter in listed]),
            Column("message", [printable(letter.message) for letter in listed], fit=wrap),
            Column("job", [printable(letter.job_id or "-") for letter in listed], spare=True),
            Column("when", [local_time(letter.at_ms) for letter in listed], spare=True),
            Column("bytes", [str(len(letter.job)) for letter in listed], right=True, spare=True),
        ],
        width,
    )


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
    """Show a dead letter. Of its prompt only the size, unless asked."""
    with DeadLetters(settings_of(redis_url, queue)) as dead:
        letter = dead.get(handle)
    if raw:
        sys.stdout.buffer.write(letter.job)
        sys.stdout.buffer.flush()
        return
    facts = _facts(letter) | _content(letter, with_prompt=prompt)
    if as_json:
        print_json(facts)
        return
    shown = {name.replace("_", " "): printable(text) for name, text in _shown(letter, facts)}
    print_drawing(facts_table(shown))


@letters.command()
def retry(
    handles: Handles = None,
    everything: All = False,
    code: Code = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Run jobs again. They are new jobs with ids of their own; prints old id -> new id.

    A job that cannot be decoded cannot run: its letter stays, with an error. A deadline that has
    passed is dropped; queue limits do not count.
    """
    refusals: list[RoseError] = []
    with DeadLetters(settings_of(redis_url, queue)) as dead:
        for handle in _chosen(dead, handles, everything, code):
            try:
                again = dead.retry(handle)
            except BrokerUnavailable:
                raise
            except RoseError as error:
                refusals.append(error)
                continue
            print_result(asdict(again), f"{again.job_id} -> {again.new_id}", as_json=as_json)
    for refusal in refusals[:-1]:
        print_error(refusal)
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
    with DeadLetters(settings_of(redis_url, queue)) as dead:
        gone = dead.purge(handles) if handles else dead.purge_all(code=code, older_than_s=age_s)
    print_result({"purged": gone}, f"{gone} dead letters purged", as_json=as_json)


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


def _shown(letter: DeadLetter, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if name == "at_ms":
            yield "when", local_time(letter.at_ms)
        elif isinstance(value, dict):
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, str(value)


def _content(letter: DeadLetter, *, with_prompt: bool) -> dict[str, Any]:
    try:
        job = letter.decode().model_dump(mode="json", exclude_defaults=True)
    except RoseError as error:
        return {"cannot_be_decoded": {"error": error.code, "message": str(error)}}
    if not with_prompt:
        size = len(json.dumps(job["prompt"], ensure_ascii=False).encode())
        job["prompt"] = f"({size} bytes as JSON: --prompt shows it)"
    return {"job": job}
