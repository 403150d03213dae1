"""`rose doctor`."""

import sys
from itertools import chain
from typing import Annotated

import typer

from rose_cli.commands import ENGINE, ended_by_ctrl_c, missing
from rose_cli.doctor.findings import print_findings
from rose_cli.doctor.gateway import examine_gateway, examine_keys, examine_queues
from rose_cli.doctor.rights import Role
from rose_cli.doctor.server import examine
from rose_cli.options import AsJson, Queue, RedisUrl, given
from rose_cli.variables import reject_unknown_variables
from rose_gateway.settings import GatewaySettings
from rose_producer import ProducerSettings
from rose_worker.settings import WorkerSettings


def doctor(
    role: Annotated[
        Role | None, typer.Option(help="What the user of the URL must be able to do.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="URL of a gateway to ask, with the key in OPENAI_API_KEY.")
    ] = None,
    load: Annotated[bool, typer.Option(help="Load the model, where there is an engine.")] = True,
    model: Annotated[str | None, typer.Option(help="Folder, GGUF file or hub name.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1.")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Check Redis, rights, clock, queue and this machine; exit 1 when something fails."""
    reject_unknown_variables()
    place = given(redis_url=redis_url, queue=queue)
    settings = WorkerSettings(**place, **given(model=model, device=device))
    client_settings = ProducerSettings(**place)
    findings = examine(client_settings, role)
    if role is Role.GATEWAY:
        queues = GatewaySettings(**place).queue_names
        findings = chain(
            findings, examine_keys(client_settings), examine_queues(client_settings, queues)
        )
    if gateway is not None:
        findings = chain(findings, examine_gateway(gateway))
    if settings.engine == "rose" and role is not Role.GATEWAY and not missing(*ENGINE):
        with ended_by_ctrl_c():
            from rose_cli.doctor.machine import examine as examine_machine

        findings = chain(findings, examine_machine(settings, load=load))
    if not print_findings(findings, as_json=as_json):
        sys.exit(1)
