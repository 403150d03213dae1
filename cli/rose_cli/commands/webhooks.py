"""`rose webhooks`: add, list, rotate, remove endpoints; list and send again what is dead."""

import asyncio
import json
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from rose import transport
from rose.errors import InvalidParameter
from rose_cli.options import AsJson, RedisUrl, command_group
from rose_cli.output import age, local_time, print_json, print_result, print_text, printable
from rose_cli.redis_session import run_with_redis
from rose_cli.tables import Column, make_table, print_drawing, terminal_width, wrap
from rose_gateway.access.keys import KeyNotFound, Keys
from rose_gateway.storage.webhook_endpoints import (
    EVENT_TYPES,
    FRESH_S,
    EventType,
    WebhookEndpoint,
    WebhookEndpoints,
)
from rose_gateway.storage.webhook_repository import (
    MAX_DEAD,
    Backlog,
    DeadEvent,
    Failures,
    WebhookRepository,
)

_HOUR_S = 3600

webhooks = command_group(
    "Where gateways tell of the end of background responses and batches, signed as Standard "
    "Webhooks say. What is not received is sent again, for three days."
)

Id = Annotated[str, typer.Argument(help="Its id, as `list` prints it.")]
#: typer makes an option of an enum only.
Event = StrEnum("Event", {name: name for name in EVENT_TYPES})  # type: ignore[misc]
_EVENTS = ", ".join(EVENT_TYPES)


@webhooks.command()
def add(
    url: Annotated[str, typer.Argument(help="https://..., which gets a POST for each event.")],
    event: Annotated[
        list[Event] | None,
        typer.Option(
            metavar="EVENT",
            help=f"A type of event that it gets; may be repeated. All if not: {_EVENTS}.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="The id of an API key: only the events of its jobs. Of all if not."),
    ] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Register an endpoint, and print its secret. Nobody can read it again.

    It gets the events of what is submitted after this command has ended.
    """
    types: Sequence[EventType] = [name for name in EVENT_TYPES if not event or name in event]

    async def action(redis: transport.AsyncRedisClient) -> tuple[WebhookEndpoint, str]:
        if key is not None and await Keys(redis).of_id(key) is None:
            raise KeyNotFound(
                f"no key {key}: `rose keys list` shows those that there are, and which are revoked"
            )
        added = await WebhookEndpoints(redis).add(url, types, key)
        await asyncio.sleep(FRESH_S)  # until every gateway knows it
        return added

    endpoint, secret = run_with_redis(redis_url, action)
    print_result(
        {**_facts(endpoint), "secret": secret}, f"{endpoint.id}\n{secret}", as_json=as_json
    )


@webhooks.command(name="list")
def list_endpoints(redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the endpoints, the oldest first. With what each has not received."""
    listed = run_with_redis(redis_url, _standing)
    if as_json:
        for endpoint, backlog, failure in listed:
            print_json(
                _facts(endpoint)
                | {
                    "undelivered": backlog.undelivered,
                    "dead": backlog.dead,
                    "failure": failure.reason if failure else None,
                }
            )
    elif listed:
        print_drawing(
            make_table(
                [
                    Column("webhook", [one.id for one, _, _ in listed]),
                    Column("url", [printable(one.url) for one, _, _ in listed], fit=wrap),
                    Column("key", [one.key or "all" for one, _, _ in listed]),
                    Column("waiting", [str(b.undelivered) for _, b, _ in listed], right=True),
                    Column("dead", [str(b.dead) for _, b, _ in listed], right=True),
                    Column(
                        "failure",
                        [printable(f.reason) if f else "-" for _, _, f in listed],
                        fit=wrap,
                    ),
                    Column("events", [_types(one) for one, _, _ in listed], spare=True),
                    Column(
                        "created",
                        [local_time(one.created_at * 1000) for one, _, _ in listed],
                        spare=True,
                    ),
                ],
                terminal_width(),
            )
        )
    else:
        print_text("no webhooks: `rose webhooks add URL` registers one")


@webhooks.command()
def rotate(
    webhook: Id,
    overlap_h: Annotated[
        float, typer.Option(min=0, max=720, help="Hours for which the old secret signs, too.")
    ] = 24,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Draw another secret, and print it. Meanwhile events have a signature by each."""
    overlap_s = round(overlap_h * _HOUR_S)
    endpoint, secret = run_with_redis(
        redis_url, lambda redis: WebhookEndpoints(redis).rotate(webhook, overlap_s)
    )
    print_result({**_facts(endpoint), "secret": secret}, secret, as_json=as_json)


@webhooks.command()
def remove(webhook: Id, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Tell an endpoint nothing any more. What it has not received is dropped."""
    endpoint = run_with_redis(redis_url, lambda redis: WebhookEndpoints(redis).remove(webhook))
    print_result(_facts(endpoint), f"removed {endpoint.id}", as_json=as_json)


@webhooks.command()
def dead(
    webhook: Annotated[str | None, typer.Argument(help="Of one endpoint. Of all if not.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most to show of each endpoint.")] = 50,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List events that were given up, the newest first."""
    listed = run_with_redis(redis_url, lambda redis: _dead(redis, webhook, limit))
    if as_json:
        for one in listed:
            print_json(_dead_facts(one))
    elif listed:
        events = [json.loads(one.event.body) for one in listed]
        print_drawing(
            make_table(
                [
                    Column("webhook", [one.endpoint_id for one in listed]),
                    Column("event", [one.event.id for one in listed]),
                    Column("age", [age(one.at_ms) for one in listed], right=True),
                    Column("type", [printable(str(event.get("type"))) for event in events]),
                    Column("tries", [str(one.failures.count) for one in listed], right=True),
                    Column("failure", [printable(one.failures.reason) for one in listed], fit=wrap),
                ],
                terminal_width(),
            )
        )
    else:
        print_text("no dead events")


@webhooks.command()
def resend(
    webhook: Id,
    events: Annotated[
        list[str] | None, typer.Argument(help="Which, as `dead` prints them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are dead.")] = False,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send dead events once more, with all attempts. They keep their ids."""
    if bool(events) == everything:
        raise InvalidParameter("name events by their ids, or say --all: one of the two")

    async def action(redis: transport.AsyncRedisClient) -> int:
        repository = WebhookRepository(redis)
        await repository.endpoints.get(webhook)
        ids = events or [one.event.id for one in await repository.dead(webhook, MAX_DEAD)]
        return await repository.resend(webhook, ids)

    resent = run_with_redis(redis_url, action)
    print_result({"resent": resent}, f"{resent} events are sent once more", as_json=as_json)


async def _standing(
    redis: transport.AsyncRedisClient,
) -> Sequence[tuple[WebhookEndpoint, Backlog, Failures | None]]:
    repository = WebhookRepository(redis)
    return [
        (one, await repository.backlog(one.id), await repository.last_failure(one.id))
        for one in await repository.endpoints.read()
    ]


async def _dead(
    redis: transport.AsyncRedisClient, webhook: str | None, limit: int
) -> Sequence[DeadEvent]:
    repository = WebhookRepository(redis)
    if webhook is not None:
        return await repository.dead((await repository.endpoints.get(webhook)).id, limit)
    endpoints = await repository.endpoints.read()
    return [event for one in endpoints for event in await repository.dead(one.id, limit)]


def _facts(endpoint: WebhookEndpoint) -> dict[str, Any]:
    facts = endpoint.model_dump(mode="json", exclude={"secrets"})
    now = time.time()
    until = [one.until for one in endpoint.secrets if one.until is not None and one.until > now]
    return {**facts, "old_secret_until": max(until, default=None)}


def _dead_facts(one: DeadEvent) -> dict[str, Any]:
    return {
        "webhook": one.endpoint_id,
        "event": json.loads(one.event.body),
        "at_ms": one.at_ms,
        "attempts": one.failures.count,
        "failure": one.failures.reason,
    }


def _types(endpoint: WebhookEndpoint) -> str:
    return (
        "all" if set(endpoint.event_types) == set(EVENT_TYPES) else " ".join(endpoint.event_types)
    )
