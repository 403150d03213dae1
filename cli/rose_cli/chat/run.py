"""`rose chat`, its course: fetch, start, say where it is, serve until Ctrl-C."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rose.errors import ConfigurationError
from rose_cli.commands import ENGINE, GATEWAY, require
from rose_cli.console import Console
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import leave_at_signals

_HOST = "127.0.0.1"
_PORT = 8080
_QUEUE = "chat"

#: A killed worker's jobs go on after the lease. The cache is for a few long conversations: left to
#: itself each worker would take a quarter of the free memory.
_WORKER: dict[str, str | float] = {
    "queue": _QUEUE,
    "lease_s": 2.0,
    "reclaim_interval_s": 0.25,
    "max_batch_size": 8,
    "kv_cache_tokens": 8192,
}


def chat(
    model: Annotated[
        str | None, typer.Option(help="Folder, GGUF file or hub name; else SmolLM2-135M.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Of the page; else 8080, or a free one.", min=1, max=65535)
    ] = None,
) -> None:
    """Talk to a real model in a browser, and kill its worker in mid-sentence."""
    require(*ENGINE)
    require(*GATEWAY, "platformdirs", extra="gateway")
    from roseinfer.checkpoints.sources import check, model_name

    leave_at_signals()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    source = model or str(_fetched(console))
    check(source)
    with (
        _listener(port) as listener,
        TemporaryDirectory(prefix="rose-chat-") as folder,
        EmbeddedBroker() as broker,
    ):
        _serve(console, listener, broker, source, model_name(source), folder)
    console.print("ended.")


def _fetched(console: Console) -> Path:
    from rose_cli.chat.model import SMOLLM2, cached, fetch

    if (path := cached()) is None:
        console.print(f"fetching {SMOLLM2.name}, {SMOLLM2.megabytes} MB, once ...")
        path = fetch()
    return path


def _serve(
    console: Console,
    listener: socket.socket,
    broker: EmbeddedBroker,
    source: str,
    name: str,
    folder: str,
) -> None:
    """Until SIGINT or SIGTERM. `folder`: for files that clients upload."""
    from rose_cli.chat.routes import install
    from rose_cli.chat.worker_pool import WorkerPool
    from rose_gateway.app import create_app
    from rose_gateway.server import run
    from rose_gateway.settings import GatewaySettings

    port: int = listener.getsockname()[1]
    settings = GatewaySettings(
        redis_url=broker.url,
        queues=_QUEUE,
        host=_HOST,
        port=port,
        storage=folder,
        grace_s=0.5,
        log_level="error",
    )
    with WorkerPool(broker.url, model=source, **_WORKER) as pool, _undisturbed_end():
        console.print(f"broker: {broker.kind}; starting two workers with {name} ...")
        pool.wait_ready(console.print)
        app = create_app(settings)
        install(app, pool)
        for line in _way_in(f"http://{_HOST}:{port}", name):
            console.print(line)
        run(settings, app, listener)


@contextmanager
def _undisturbed_end() -> Iterator[None]:
    """Whoever is impatient must not leave workers behind: no signal stops the end."""
    try:
        yield
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)


def _way_in(url: str, name: str) -> list[str]:
    request = {"model": name, "input": "Why is the sky blue?", "stream": True}
    return [
        f"talk to it at {url}/, or with anything that speaks OpenAI's API at {url}/v1:",
        f"  curl -N {url}/v1/responses -H content-type:application/json \\",
        f"    -d '{json.dumps(request)}'",
        f"kill the worker in mid-sentence: curl -X POST {url}/v1/demo/kill-worker",
        "Ctrl-C ends everything.",
    ]


def _listener(port: int | None) -> socket.socket:
    """None: the usual port, or a free one if somebody has it.

    Raises: ConfigurationError
    """
    from rose_gateway.server import listen

    try:
        return listen(_HOST, port or _PORT)
    except ConfigurationError:
        if port is not None:
            raise
        return listen(_HOST, 0)
