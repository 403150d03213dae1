"""Every command of `rose`: its module, its function there, and its line in `rose --help`.

A command's module is imported when that command runs, so that `rose --help` loads none of them.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from rose.errors import ConfigurationError, InvalidParameter
from rose.installation import how_to_install
from rose_cli.options import GroupedHelp

#: What a command needs beyond the base install, where it needs the engine.
ENGINE = ("torch", "transformers", "tokenizers", "llguidance")
GATEWAY = ("fastapi", "httptools", "uvicorn", "uvloop")


class Command(NamedTuple):
    module: str
    function: str
    """a typer.Typer where the command has commands of its own"""
    summary: str
    """short enough for a terminal of 80 columns"""


COMMANDS = {
    "submit": Command(".jobs", "submit", "Enqueue prompts and print their job ids."),
    "stream": Command(".jobs", "stream", "Print a job's text as it comes."),
    "result": Command(".jobs", "result", "Wait for a job to end, and print its text."),
    "status": Command(".jobs", "status", "Show how a job stands, or the queue."),
    "cancel": Command(".jobs", "cancel", "Stop a job."),
    "embed": Command(".encode", "embed", "Print the vectors of texts."),
    "rerank": Command(".encode", "rerank", "Order texts by how well they fit a query."),
    "batch": Command(".batch", "batch", "Answer a file of requests, each line once."),
    "dead-letters": Command(".dead_letters", "letters", "See, retry, purge jobs that cannot run."),
    "worker": Command(".worker", "worker", "Serve a queue: generate, publish every token once."),
    "gateway": Command(".gateway", "gateway", "Serve OpenAI's API over the queue."),
    "keys": Command(".keys", "keys", "Make and revoke the gateway's API keys."),
    "webhooks": Command(".webhooks", "webhooks", "Tell services when answers are there."),
    "tenants": Command(".tenants", "tenants", "Share the queue: weights and limits of tenants."),
    "top": Command(".top", "top", "Watch the queue and its workers."),
    "doctor": Command(".doctor", "doctor", "Check Redis, the queue and this machine."),
    "demo": Command("..demo.run", "demo", "Kill a worker in mid-sentence; no token is lost."),
    "chat": Command("..chat.run", "chat", "Talk to a real model; kill its worker meanwhile."),
    "load": Command(".load", "load", "Submit stories at a rate, and read every stream."),
    "generate": Command(".generate", "generate", "Generate without a queue, in this process."),
}


class ReaderGone(Exception):
    """Whoever reads stdout has seen enough, as `head` has after ten lines."""


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """Raises: ReaderGone: of a BrokenPipeError typer would make the exit code 1."""
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None


#: Of typer's own exceptions: a wrong option, argument or command.
_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _one_line() -> Iterator[None]:
    """Raises: InvalidParameter: of a usage error typer would print four lines."""
    try:
        yield
    except _UsageError as error:
        if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
            raise
        said = " ".join(error.format_message().split()).rstrip(".")
        raise InvalidParameter(
            f"{said[0].lower()}{said[1:]}: see {error.ctx.command_path} --help"
        ) from None


class CommandGroup(TyperGroup):
    """The commands above. Until one of them runs, a placeholder with its summary stands for it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, help=command.summary, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, import_command(name) if name in COMMANDS else placeholder, rest

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Raises: InvalidParameter; ReaderGone: `--help` and `--version` print here."""
        with _reader_may_go(), _one_line():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        """Raises: InvalidParameter, ReaderGone"""
        with _reader_may_go(), _one_line():
            return super().invoke(ctx)


def import_command(name: str) -> Any:
    """The command itself. It imports what the command needs."""
    command = COMMANDS[name]
    target = getattr(import_module(command.module, __name__), command.function)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, cls=GroupedHelp)(target)
        target = app
    return typer.main.get_command(target)


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """For imports of libraries in C: interrupted in the middle they raise whatever comes to pass,
    and no KeyboardInterrupt. While it lasts Ctrl-C ends the process at once."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not handled or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(*modules: str) -> list[str]:
    return [name for name in modules if find_spec(name) is None]


def require(*modules: str, extra: str = "worker") -> None:
    """Raises: ConfigurationError: says what to install."""
    absent = missing(*modules)
    if absent:
        raise ConfigurationError(f"this needs {' and '.join(absent)}: {how_to_install(extra)}")
