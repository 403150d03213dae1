"""`rose`: runs the commands that `rose_cli.commands` lists, and turns errors into exit codes."""

import errno
import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from rose.errors import ConfigurationError, InvalidRequest, RoseError
from rose_cli.commands import CommandGroup, ReaderGone
from rose_cli.output import accept_all_characters, print_error

#: Where output goes has no room, or has failed.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: What Python and torch say where they get no memory, in errors that are no MemoryError.
_OUT_OF_MEMORY = ("can't start new thread", "can't allocate memory", "out of memory")

app = typer.Typer(
    name="rose",
    cls=CommandGroup,
    help="A durable prompt queue for large language models: every token exactly once, in order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("roseinfer"))
        raise typer.Exit


# A callback makes it a group, though its commands are not registered with typer.
@app.callback()
def _rose(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it, exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run `rose`: a mistake of the user's is one line on stderr, never a traceback."""
    try:
        _run()
    except RoseError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenPipeError, ReaderGone):
        _end_as_by_sigpipe()
    except (MemoryError, OSError, RuntimeError) as error:
        if _is_out_of_memory(error):
            _end_without_memory(error)
        if not isinstance(error, OSError) or error.errno not in _FULL:
            raise
        print(f"rose: cannot write: {error.strerror}", file=sys.stderr)
        os._exit(1)  # what is left in buffers cannot be written either, and would be a traceback


def _run() -> None:
    accept_all_characters(sys.stdout)
    try:
        app(prog_name="rose")
    finally:
        if sys.stdout is not None:  # None: the caller has closed it
            sys.stdout.flush()


def _end_as_by_sigpipe() -> NoReturn:
    """Without a word, as other tools before `head`. Python ignores the signal itself, so that a
    peer's end does not end it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left in buffers
    sys.exit(128 + signal.SIGPIPE)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY)


def _end_without_memory(error: BaseException) -> NoReturn:
    reason = str(error).splitlines()[0] if str(error) else "nothing is left"
    print(
        f"rose: out of memory ({reason}): free some, or raise the limit of this process "
        "(ulimit -v, a container's)",
        file=sys.stderr,
    )
    sys.exit(1)


def _fail(error: RoseError) -> NoReturn:
    """Exit 2 for a request or setting that can never work, else 1."""
    print_error(error)
    sys.exit(2 if isinstance(error, InvalidRequest | ConfigurationError) else 1)


if __name__ == "__main__":
    main()
