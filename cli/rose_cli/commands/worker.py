"""`rose worker`: its options are the fields of WorkerSettings."""

from typing import Annotated, Any

from rose_cli.commands import ENGINE, require
from rose_cli.options import REDIS, with_options
from rose_cli.variables import options_of, reject_unknown_variables
from rose_worker.settings import WorkerSettings

_HEADINGS = {
    "redis_url": REDIS,
    "engine": "Model",
    "max_batch_size": "Batches and memory",
    "lease_s": "Delivery",
    "http_host": "HTTP, logs and traces",
}
_OPTIONS = {
    name: Annotated[annotation | None, option]
    for name, (annotation, option) in options_of(
        WorkerSettings.model_fields, lambda name: f"ROSE_{name.upper()}", _HEADINGS
    ).items()
}


@with_options("values", _OPTIONS)
def worker(values: dict[str, Any]) -> None:
    """Serve a queue: pull jobs into free slots, generate, publish every token once."""
    reject_unknown_variables()
    settings = WorkerSettings(**values)
    if settings.engine == "rose":
        require(*ENGINE)
    from rose_worker.main import run

    run(settings)
