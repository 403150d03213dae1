"""`rose keys`: create, list, revoke the gateway's API keys."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from rose.protocol import Priority
from rose.protocol.tenants import check_tenant
from rose_cli.options import AsJson, RedisUrl, command_group
from rose_cli.output import local_time, print_json, print_result, print_text, printable
from rose_cli.redis_session import run_with_redis
from rose_cli.tables import Column, make_table, print_drawing, terminal_width
from rose_gateway.access.keys import ApiKey, Keys
from rose_gateway.settings import KeyLimits

T = TypeVar("T")

KeyName = Annotated[str, typer.Argument(help="Its id or its name, as `list` prints them.")]

keys = command_group(
    "The API keys that `rose gateway` asks for as soon as there is one. Redis holds their "
    "hashes only."
)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, for `rose keys list`.")],
    requests_per_minute: Annotated[
        int | None,
        typer.Option(min=1, help="Requests that make jobs, files or batches. None: no limit."),
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Estimated tokens, of prompts and answers.")
    ] = None,
    reads_per_minute: Annotated[int | None, typer.Option(min=1, help="All other requests.")] = None,
    max_jobs: Annotated[int | None, typer.Option(min=1, help="Jobs queued and running.")] = None,
    max_stored_bytes: Annotated[int | None, typer.Option(min=1, help="Of its files.")] = None,
    max_files: Annotated[int | None, typer.Option(min=1, help="Files that it keeps.")] = None,
    max_unfinished_batches: Annotated[
        int | None, typer.Option(min=1, help="Batches waiting and running.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model it may use; may be repeated. All if not.")
    ] = None,
    max_priority: Annotated[
        Priority, typer.Option(help="The highest priority that it may ask for.")
    ] = Priority.HIGH,
    tenant: Annotated[
        str, typer.Option(help="Whose share of the queue its jobs take: see rose tenants.")
    ] = "",
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print its secret: nobody can read it again."""
    limits = KeyLimits(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        reads_per_minute=reads_per_minute,
        max_jobs=max_jobs,
        max_stored_bytes=max_stored_bytes,
        max_files=max_files,
        max_unfinished_batches=max_unfinished_batches,
        models=tuple(model) if model else None,
        max_priority=max_priority,
    )
    if tenant:
        check_tenant(tenant)
    key, secret = _run(redis_url, lambda keys: keys.create(name, limits, tenant))
    if not as_json:
        print_text(f"key {key.id}; its secret is shown this once:", file=sys.stderr)
    print_result({**_facts(key), "secret": secret}, secret, as_json=as_json)


@keys.command(name="list")
def list_keys(redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the keys, the oldest first."""
    listed = _run(redis_url, lambda keys: keys.list())
    if as_json:
        for key in listed:
            print_json(_facts(key))
    elif listed:
        print_drawing(
            make_table(
                [
                    Column("key", [key.id for key in listed]),
                    Column("name", [printable(key.name) for key in listed]),
                    Column("tenant", [printable(key.tenant) or "-" for key in listed]),
                    Column("limits", [_limits(key) for key in listed]),
                    Column("created", [local_time(key.created * 1000) for key in listed]),
                ],
                terminal_width(),
            )
        )
    else:
        print_text("no keys: a gateway on loopback is open to all")


@keys.command()
def revoke(
    key: KeyName,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a key from now on. Gateways notice within a few seconds; its jobs go on."""
    revoked, left = _run(redis_url, lambda keys: _revoke(keys, key))
    text = f"revoked {revoked.id} ({printable(revoked.name)})"
    if not left:
        text += (
            ", the last one: gateways go on asking for a key; make one (rose keys create NAME), or "
            "say ROSE_GATEWAY_OPEN=true to serve everybody"
        )
    print_result(_facts(revoked), text, as_json=as_json)


async def _revoke(keys: Keys, id_or_name: str) -> tuple[ApiKey, int]:
    """The key, and how many are left."""
    revoked = await keys.revoke((await keys.find(id_or_name)).id)
    return revoked, sum(key.revoked is None for key in await keys.list())


@keys.command()
def assign(
    key: KeyName,
    tenant: Annotated[str, typer.Argument(help='The tenant; "" for none.')],
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a key to a tenant. It holds for the jobs from now on, within a few seconds."""
    if tenant:
        check_tenant(tenant)
    changed = _run(redis_url, lambda keys: _assign(keys, key, tenant))
    whose = f"tenant {tenant}" if tenant else "no tenant"
    print_result(_facts(changed), f"{changed.id}: {whose}", as_json=as_json)


async def _assign(keys: Keys, id_or_name: str, tenant: str) -> ApiKey:
    return await keys.assign((await keys.find(id_or_name)).id, tenant)


def rename_tenant(redis_url: str | None, old: str, new: str) -> Sequence[str]:
    """For `rose tenants rename`: the ids of the keys that were one tenant's and are another's."""
    return _run(redis_url, lambda keys: keys.rename_tenant(old, new))


def _run(redis_url: str | None, action: Callable[[Keys], Awaitable[T]]) -> T:
    return run_with_redis(redis_url, lambda redis: action(Keys(redis)))


def _facts(key: ApiKey) -> dict[str, Any]:
    return key.model_dump(mode="json", exclude={"secret_sha256"})


def _limits(key: ApiKey) -> str:
    if key.revoked is not None:
        return "revoked"
    limits = key.limits.model_dump(mode="json", exclude_defaults=True)
    values = {n: "|".join(v) if isinstance(v, list) else v for n, v in limits.items()}
    return ", ".join(f"{name}={printable(str(value))}" for name, value in values.items()) or "-"
