"""`rose doctor`."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Annotated

import typer

from rose_cli.commands import ENGINE, missing
from rose_cli.doctor.findings import print_findings
from rose_cli.doctor.rights import Role
from rose_cli.doctor.server import examine
from rose_cli.options import AsJson, Device, Model, Queue, RedisUrl, given
from rose_producer import ProducerSettings
from rose_worker.settings import WorkerSettings, reject_unknown_variables


def doctor(
    role: Annotated[
        Role | None, typer.Option(help="What the user of the URL must be able to do.")
    ] = None,
    load: Annotated[bool, typer.Option(help="Load the model, where there is an engine.")] = True,
    model: Model = None,
    device: Device = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Check Redis, rights, clock, queue and this machine; exit 1 when something fails."""
    reject_unknown_variables()
    place = given(redis_url=redis_url, queue=queue)
    settings = WorkerSettings(**place, **given(model=model, device=device))
    findings = examine(ProducerSettings(**place), role)
    if settings.engine == "rose" and not missing(*ENGINE):
        from rose_cli.doctor.machine import examine as examine_machine

        findings = chain(findings, examine_machine(settings, load=load))
    if not print_findings(findings, as_json=as_json):
        sys.exit(1)
