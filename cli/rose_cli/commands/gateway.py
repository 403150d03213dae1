"""`rose gateway`: its options are the fields of GatewaySettings."""

from typing import Annotated, Any

from rose_cli.commands import GATEWAY, require
from rose_cli.options import REDIS, with_options
from rose_cli.variables import options_of, reject_unknown_variables
from rose_gateway.settings import GatewaySettings, variable

_HEADINGS = {
    "redis_url": REDIS,
    "tenant": "As a client of the queue",
    "queues": "API",
    "max_body_bytes": "Limits of requests",
    "storage": "Files and batches",
    "max_connections": "Connections",
    "log_level": "Logs",
}
_OPTIONS = {
    name: Annotated[annotation | None, option]
    for name, (annotation, option) in options_of(
        GatewaySettings.model_fields, variable, _HEADINGS
    ).items()
}


@with_options("values", _OPTIONS)
def gateway(values: dict[str, Any]) -> None:
    """Serve OpenAI's API over the queue, to any number of clients."""
    reject_unknown_variables()
    settings = GatewaySettings(**values)
    require(*GATEWAY, extra="gateway")
    from rose_gateway.server import run

    run(settings)
