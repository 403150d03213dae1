"""`rose tenants`: who shares the queue, in which proportion, and within which limits."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from rose.errors import InvalidParameter
from rose.protocol import Priority
from rose.protocol.tenants import LIMITS, TenantLimits, TenantsStatus, TenantStatus
from rose_cli.commands.keys import rename_tenant
from rose_cli.options import AsJson, Queue, RedisUrl, command_group, given, settings_of
from rose_cli.output import print_json, print_result, print_text, printable
from rose_cli.tables import (
    Cell,
    Column,
    elide_middle,
    facts_table,
    make_table,
    print_drawing,
    terminal_width,
)
from rose_gateway.access.keys import FRESH_S
from rose_producer.tenants import Tenants

tenants = command_group(
    "Who shares the queue. A tenant need not be made: a job names it (rose submit --tenant, "
    "rose keys create --tenant), and has weight 1 and no limits until `set` says more."
)

Name = Annotated[str, typer.Argument(help="The tenant's name.")]

#: What takes a limit away again.
_NONE = "none"

_WHAT = {
    "max_running_jobs": "Jobs that workers hold at one time.",
    "max_queued_jobs": "Jobs that have not ended.",
    "max_queued_tokens": "The same in estimated tokens, of prompts and answers.",
    "max_queued_bytes": "The same in bytes of Redis' memory.",
    "requests_per_minute": "Jobs enqueued in a minute.",
    "tokens_per_minute": "Estimated tokens enqueued in a minute.",
}


def _limit(name: str) -> Any:
    return typer.Option(help=_WHAT[name], metavar="N|none")


@tenants.command(name="set")
def set_tenant(
    name: Name,
    weight: Annotated[
        float | None, typer.Option(help="Its share of the slots beside others that wait.")
    ] = None,
    max_running_jobs: Annotated[str | None, _limit("max_running_jobs")] = None,
    max_queued_jobs: Annotated[str | None, _limit("max_queued_jobs")] = None,
    max_queued_tokens: Annotated[str | None, _limit("max_queued_tokens")] = None,
    max_queued_bytes: Annotated[str | None, _limit("max_queued_bytes")] = None,
    requests_per_minute: Annotated[str | None, _limit("requests_per_minute")] = None,
    tokens_per_minute: Annotated[str | None, _limit("tokens_per_minute")] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Change what a tenant may use; what is not named stays. It holds from the next job on.

    A limit is one of the whole queue; `none` takes it away.
    """
    texts: dict[str, Any] = given(
        max_running_jobs=max_running_jobs,
        max_queued_jobs=max_queued_jobs,
        max_queued_tokens=max_queued_tokens,
        max_queued_bytes=max_queued_bytes,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
    )
    changes: dict[str, Any] = {field: _number(field, text) for field, text in texts.items()}
    with Tenants(settings_of(redis_url, queue)) as known:
        limits = replace(known.show(name).limits, **changes, **given(weight=weight))
        known.set(name, limits)
    text = f"{name}: weight {limits.weight:g}, {_caps(limits) or 'no limits'}"
    print_result({"name": name} | asdict(limits), text, as_json=as_json)


@tenants.command(name="class")
def let_pass(
    name: Annotated[Priority | None, typer.Argument(help="Its name; leave out to see all.")] = None,
    passes: Annotated[
        bool | None,
        typer.Option(
            "--passes/--waits",
            help="Its jobs go before all others, or in their tenants' turns, which is the default.",
        ),
    ] = None,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Let a priority pass all tenants. Its jobs go before those of all others.

    They are charged to their tenants, and held to their limits. It holds for jobs from now on.
    """
    with Tenants(settings_of(redis_url, queue)) as known:
        passing = set(known.passing())
        if passes is not None:
            if name is None:
                raise InvalidParameter("class: say which: high, normal or low")
            passing = passing | {name} if passes else passing - {name}
            known.set_passing(passing)
    for one in [name] if name else Priority:
        facts = {"class": one.value, "passes": one in passing}
        text = _passes(one) if one in passing else f"{one.value} waits"
        print_result(facts, text, as_json=as_json)


def _passes(name: Priority) -> str:
    return f"{name.value} passes: its jobs go before those of all tenants"


@tenants.command(name="list")
def list_tenants(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most to show.")] = 50,
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """List tenants. Those that wait or run, the most waiting first, and those that `set` knows."""
    with Tenants(settings_of(redis_url, queue)) as known:
        status = known.top(limit)
        rows = list(status.top[:limit])
        names = {row.name for row in status.top}
        idle = [name for name in known.list() if name not in names]
        rows += [known.show(name) for name in idle[: limit - len(rows)]]
        passing = known.passing()
    if as_json:
        for row in rows:
            print_json(_facts(row, status, passing))
        return
    if rows:
        print_drawing(make_table(_columns(rows, status), terminal_width()))
        if (more := max(status.count, len(names) + len(idle)) - len(rows)) > 0:
            print_text(f"and {more:,} more: --limit shows up to 1000")
    else:
        print_text("no tenants: all jobs share the queue as one")
    for one in passing:
        print_text(_passes(one))


@tenants.command()
def show(
    name: Name, redis_url: RedisUrl = None, queue: Queue = None, as_json: AsJson = False
) -> None:
    """Show how a tenant stands, and what it may use."""
    with Tenants(settings_of(redis_url, queue)) as known:
        now, tenant, passing = known.top(0), known.show(name), known.passing()
    if as_json:
        print_json(_facts(tenant, now, passing))
        return
    print_drawing(facts_table(_shown(tenant, now, passing)))


@tenants.command()
def remove(
    name: Name, redis_url: RedisUrl = None, queue: Queue = None, as_json: AsJson = False
) -> None:
    """Forget what `set` has set: weight 1 again, and no limits. Its jobs stay and run."""
    with Tenants(settings_of(redis_url, queue)) as known:
        removed = known.remove(name)
    text = f"removed the limits of {name}" if removed else f"{name} had neither weight nor limits"
    print_result({"name": name, "removed": removed}, text, as_json=as_json)


@tenants.command()
def rename(
    name: Name,
    new: Annotated[str, typer.Argument(help="Its new name.")],
    redis_url: RedisUrl = None,
    queue: Queue = None,
    as_json: AsJson = False,
) -> None:
    """Give a tenant another name. Its API keys, weight and limits, and jobs go with it.

    Clients that name the tenant themselves (ROSE_TENANT) are to say the new name first. It may be
    repeated at any time.
    """
    with Tenants(settings_of(redis_url, queue)) as known:
        jobs = known.rename(name, new)  # refuses what cannot be, before any key is changed
        if keys := rename_tenant(redis_url, name, new):
            time.sleep(2 * FRESH_S)  # until all gateways know
            jobs += known.rename(name, new)
    text = f"{name} is {new} now: {_counted(jobs, 'job')}, {_counted(len(keys), 'API key')}"
    print_result(
        {"name": new, "was": name, "jobs": jobs, "keys": list(keys)}, text, as_json=as_json
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _number(name: str, text: str) -> int | None:
    if text == _NONE:
        return None
    if text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0:
        return int(text)
    raise InvalidParameter(f"{name}: must be a whole number from 1 on, or none (got {text!r})")


def _columns(rows: Sequence[TenantStatus], now: TenantsStatus) -> list[Column]:
    def numbers(header: str, cells: Sequence[Cell], *, spare: bool = False) -> Column:
        return Column(header, cells, right=True, spare=spare)

    return [
        Column("tenant", [printable(row.name) for row in rows], fit=elide_middle),
        numbers("weight", [f"{row.limits.weight:g}" for row in rows]),
        numbers("waiting", [f"{row.waiting:,}" for row in rows]),
        numbers("oldest", [_age(row, now) for row in rows]),
        numbers("running", [_of(row.running, row.limits.max_running_jobs) for row in rows]),
        numbers("served tokens", [f"{row.served_tokens:,}" for row in rows]),
        numbers("queued tokens", [f"{row.queued_tokens:,}" for row in rows], spare=True),
        Column("limits", [_caps(row.limits) or "-" for row in rows], spare=True),
    ]


def _of(count: int, most: int | None) -> str:
    return f"{count:,}" if most is None else f"{count:,}/{most:,}"


def _age(row: TenantStatus, now: TenantsStatus) -> str:
    seconds = now.age_s(row.oldest_waiting_ms)
    return "-" if seconds is None else f"{seconds:,.1f} s"


def _caps(limits: TenantLimits) -> str:
    caps = asdict(limits)
    return ", ".join(f"{name}={caps[name]}" for name in LIMITS if caps[name] is not None)


def _facts(tenant: TenantStatus, now: TenantsStatus, passing: Sequence[Priority]) -> dict[str, Any]:
    facts = asdict(tenant)
    limits = facts.pop("limits")
    waits = {"oldest_waiting_s": now.age_s(tenant.oldest_waiting_ms)}
    return {**facts, **waits, **limits, "passing_classes": [one.value for one in passing]}


def _shown(tenant: TenantStatus, now: TenantsStatus, passing: Sequence[Priority]) -> dict[str, str]:
    limits = asdict(tenant.limits)
    waiting = f"{tenant.waiting:,}"
    if tenant.waiting:
        waiting += f", the next one for {_age(tenant, now)}"
    if tenant.limited:
        waiting += "; it has as many running as it may"
    return {
        "tenant": printable(tenant.name),
        "weight": f"{tenant.limits.weight:g}",
        "waiting": waiting,
        "running": f"{tenant.running:,}",
        "queued tokens": f"{tenant.queued_tokens:,}",
        "queued bytes": f"{tenant.queued_bytes:,}",
        "served tokens": f"{tenant.served_tokens:,}",
        **{
            name.replace("_", " "): "no limit" if limits[name] is None else f"{limits[name]:,}"
            for name in LIMITS
        },
        "passing classes": ", ".join(passing) or "none",
    }
