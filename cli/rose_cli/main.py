"""`rose`, the one command. Every sub-command is a thin call into the packages.

Imports of worker and engine stay inside their commands: the base install has no torch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import SecretStr, ValidationError
from pydantic_core import PydanticUndefined
from rich.table import Table

from rose.errors import ConfigurationError, InvalidRequest, RoseError
from rose.protocol import CancelledEvent, FinishedEvent, error_of
from rose.protocol.jobs import describe
from rose_cli.common import (
    AsJson,
    Queue,
    RedisUrl,
    complain,
    given,
    out,
    print_json,
)
from rose_cli.dead_letters import letters
from rose_cli.doctor import examine
from rose_cli.findings import tell
from rose_cli.rights import Role
from rose_cli.sampling import with_sampling_options
from rose_cli.top import top
from rose_producer import Client, FailedEvent, Job, ProducerSettings, Request, TokenEvent
from rose_worker.settings import WorkerSettings, reject_unknown_variables

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

app = typer.Typer(
    name="rose",
    help="A durable prompt queue for large language models: every token exactly once, in order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(letters, name="dead-letters")
app.command()(top)

_GENERATED = 256  # tokens, where nobody says how many
_ENGINE_NEEDS = ("torch", "transformers", "tokenizers", "llguidance")
_WORKER_NEEDS = (*_ENGINE_NEEDS, "prometheus_client")

JobId = Annotated[str, typer.Argument(help="The job's id, as `rose submit` prints it.")]


def main() -> None:
    """Run `rose`: a mistake of the user's is one line on stderr, never a traceback."""
    try:
        app()
    except RoseError as error:
        fail(error)
    except ValidationError as error:
        fail(ConfigurationError(describe(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)  # the reader has seen enough, as with `rose stream ID | head`


def fail(error: RoseError) -> NoReturn:
    """Exit 2 for a request or setting that can never work, else 1."""
    complain(error)
    sys.exit(2 if isinstance(error, InvalidRequest | ConfigurationError) else 1)


def _client(redis_url: str | None, queue: str | None) -> Client:
    return Client(ProducerSettings(**given(redis_url=redis_url, queue=queue)))


@app.command()
@with_sampling_options
def submit(
    prompts: Annotated[list[str], typer.Argument(help="Prompts, a job each; - reads stdin.")],
    stream: Annotated[bool, typer.Option(help="Wait, and print the text as it comes.")] = False,
    chat: Annotated[bool, typer.Option(help="Send each prompt as a user's chat message.")] = False,
    logprobs: Annotated[
        bool | None, typer.Option("--logprobs", help="With --json: log-probabilities of tokens.")
    ] = None,
    top_logprobs: Annotated[
        int | None, typer.Option(help="And of so many of the likeliest ones.")
    ] = None,
    priority: Annotated[str, typer.Option(help="high, normal or low.")] = "normal",
    deadline: Annotated[
        float | None, typer.Option(help="Seconds after which nobody wants it.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key again gives the same job.")
    ] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Enqueue prompts and print their job ids."""
    sampling |= given(logprobs=logprobs, top_logprobs=top_logprobs)
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    requests = [
        Request(
            [{"role": "user", "content": text}] if chat else text,
            priority=priority,
            deadline_s=deadline,
            idempotency_key=idempotency_key,
            sampling=sampling,
        )
        for text in texts
    ]
    with _client(redis_url, queue) as client:
        for job in client.submit_many(requests):
            if as_json:
                print_json({"id": job.id})
            else:
                out.print(job.id, markup=False)
            if stream:
                _show_stream(job, 0, as_json)


@app.command(name="stream")
def stream_job(
    job_id: JobId,
    cursor: Annotated[int, typer.Option(help="Tokens you have already.")] = 0,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Print a job's text from the beginning, or from a cursor, as it comes."""
    with _client(redis_url, queue) as client:
        _show_stream(client.job(job_id), cursor, as_json)


def _show_stream(job: Job, cursor: int, as_json: bool) -> None:
    for event in job.stream(cursor):
        if as_json:
            print_json(event.model_dump(exclude_none=True) | {"cursor": event.cursor})
        elif isinstance(event, TokenEvent):
            sys.stdout.write(event.text)
            sys.stdout.flush()
        elif isinstance(event, FinishedEvent):
            sys.stdout.write("\n")
        if isinstance(event, FailedEvent | CancelledEvent):
            raise error_of(event, job.id)


@app.command()
def result(
    job_id: JobId,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Wait for a job to end, and print its text."""
    with _client(redis_url, queue) as client:
        answer = client.job(job_id).result(timeout)
    if as_json:
        print_json(asdict(answer))
    else:
        print(answer.text)


@app.command()
def status(
    job_id: Annotated[str | None, typer.Argument(help="A job; the queue if left out.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Show how a job stands, or the queue."""
    with _client(redis_url, queue) as client:
        facts = asdict(client.queue_status() if job_id is None else client.job(job_id).status())
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        table.add_row(name.replace("_", " "), "-" if shown in (None, "") else str(shown))
    out.print(table)


@app.command()
def cancel(
    job_id: JobId, redis_url: RedisUrl = None, queue: Queue = None, as_json: AsJson = False
) -> None:
    """Stop a job: at once if it waits, within one step if it runs."""
    with _client(redis_url, queue) as client:
        stopping = client.job(job_id).cancel()
    if as_json:
        print_json({"id": job_id, "cancelled": stopping})
    else:
        print(f"{job_id} is being cancelled" if stopping else f"{job_id} had ended already")


@app.command()
@with_sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    model: Annotated[str | None, typer.Option(help="Folder or hub name; else built in.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    as_json: AsJson = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Generate without a queue, in this process."""
    _require(*_ENGINE_NEEDS)
    from roseinfer import SamplingParams
    from roseinfer.sources import resolve

    params = SamplingParams(**({"max_new_tokens": _GENERATED} | sampling))
    if model is not None:
        resolve(model)
    from roseinfer import InferenceEngine  # takes seconds to load: not before a mistake is found

    engine = InferenceEngine(model, device=device)
    if as_json:
        print_json({"prompt": prompt, "text": engine.generate(prompt, params)})
        return
    for piece in engine.stream_generate(prompt, params):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


@app.command()
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
    _require(*_WORKER_NEEDS)
    from rose_cli.demo.run import run_demo

    if not run_demo(full_speed=full_speed, fake_redis=fake_redis, as_json=as_json):
        sys.exit(1)


def worker(**flags: Any) -> None:
    """Serve a queue: pull jobs into free slots, generate, publish every token once."""
    reject_unknown_variables()
    settings = WorkerSettings(**given(**flags))
    _require("prometheus_client", *(_ENGINE_NEEDS if settings.engine == "rose" else ()))
    from rose_worker.main import run

    run(settings)


@app.command()
def doctor(
    role: Annotated[
        Role | None, typer.Option(help="What the user of the URL must be able to do.")
    ] = None,
    load: Annotated[bool, typer.Option(help="Load the model, where there is an engine.")] = True,
    model: Annotated[str | None, typer.Option(help="Folder or hub name; else built in.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Check Redis, rights, clock, queue and this machine; exit 1 when something fails."""
    reject_unknown_variables()
    place = given(redis_url=redis_url, queue=queue)
    settings = WorkerSettings(**place, **given(model=model, device=device))
    findings = examine(ProducerSettings(**place), role)
    if settings.engine == "rose" and not _missing(*_WORKER_NEEDS):
        from rose_cli.machine import examine as examine_machine

        findings = chain(findings, examine_machine(settings, load=load))
    if not tell(findings, as_json=as_json):
        sys.exit(1)


def _missing(*modules: str) -> list[str]:
    return [name for name in modules if find_spec(name) is None]


def _require(*modules: str) -> None:
    missing = _missing(*modules)
    if missing:
        raise ConfigurationError(f"this needs {' and '.join(missing)}: install roseinfer[worker]")


def _with_settings_as_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` one option for each worker setting, so that --help shows them all."""
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_option_type(field), _option(name, field)],
        )
        for name, field in WorkerSettings.model_fields.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _option(name: str, field: FieldInfo) -> Any:
    default = field.default
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    notes = [f"env: ROSE_{name.upper()}"]
    if default is not None and default is not PydanticUndefined:
        notes.insert(0, f"default: {default}")
    flag = name.replace("_", "-")
    return typer.Option(
        f"--{flag}/--no-{flag}" if default is True else f"--{flag}",
        help=f"{field.description} [{'; '.join(notes)}]",
        show_default=False,
    )


def _option_type(field: FieldInfo) -> Any:
    kinds = {"int": int, "float": float, "bool": bool}
    name = str(field.annotation).replace(" | None", "").removeprefix("<class '").removesuffix("'>")
    kind: Any = kinds.get(name, str)
    return kind | None


app.command(name="worker")(_with_settings_as_options(worker))

if __name__ == "__main__":
    main()
