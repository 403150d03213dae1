"""Webhook endpoints: where events go, and the secrets that sign them.

Redis has the secrets as they are: a signature needs them. `rose webhooks` writes them, a gateway
reads them, and nothing shows them but their creation.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rose import transport
from rose.errors import InvalidParameter, RoseError
from rose.protocol.keys import BulkKeys

EventType = Literal[
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)

#: How long a gateway believes what it has read.
FRESH_S = 2.0

_SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
#: The specification asks for 24 to 64.
_SECRET_BYTES = 32
_MAX_URL = 2048


class WebhookNotFound(RoseError):
    code = "webhook_not_found"


class Secret(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    value: str = Field(repr=False)
    until: int | None = None
    """Unix seconds; None for the one that was drawn last"""

    def signature(self, signed: bytes) -> str:
        key = base64.b64decode(self.value.removeprefix(_SECRET_PREFIX))
        return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


class WebhookEndpoint(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    url: str
    created_at: int
    """Unix seconds"""
    event_types: tuple[EventType, ...]
    key: str | None = None
    """the id of the API key whose events it gets; None: all events"""
    secrets: tuple[Secret, ...] = Field(repr=False)

    def is_of(self, owner: str) -> bool:
        """`owner`: the id of an API key, "" where the gateway is open to all."""
        return self.key is None or self.key == owner

    def headers(self, event_id: str, body: bytes, now: int) -> dict[str, str]:
        """Those of Standard Webhooks, with a signature by each secret that holds. `now`: Unix
        seconds."""
        signed = b"%s.%d.%s" % (event_id.encode(), now, body)
        valid = [one for one in self.secrets if one.until is None or one.until > now]
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(now),
            "webhook-signature": " ".join(one.signature(signed) for one in valid),
        }


class WebhookEndpoints:
    """Belongs to one event loop. What it reads, it believes for a moment."""

    def __init__(self, redis: transport.AsyncRedisClient) -> None:
        self._redis = redis
        self._known: Sequence[WebhookEndpoint] = ()
        self._read_at = float("-inf")

    async def add(
        self, url: str, event_types: Sequence[EventType] = EVENT_TYPES, key: str | None = None
    ) -> tuple[WebhookEndpoint, str]:
        """The endpoint, and its secret. Gateways know it after `FRESH_S`. `key`: checked.

        Raises: InvalidParameter: the URL; BrokerUnavailable
        """
        check_url(url)
        secret = _new_secret()
        endpoint = WebhookEndpoint(
            id=f"wh_{secrets.token_hex(8)}",
            url=url,
            created_at=int(time.time()),
            event_types=tuple(event_types),
            key=key,
            secrets=(secret,),
        )
        await self._write(endpoint)
        return endpoint, secret.value

    async def rotate(self, endpoint_id: str, overlap_s: int) -> tuple[WebhookEndpoint, str]:
        """The endpoint, and its new secret. Those before it sign, too, until `overlap_s` is over.

        Raises: WebhookNotFound, BrokerUnavailable
        """
        endpoint = await self.get(endpoint_id)
        now, secret = int(time.time()), _new_secret()
        limit = now + overlap_s
        before = [
            one.model_copy(update={"until": min(limit, one.until or limit)})
            for one in endpoint.secrets
        ]
        valid = [one for one in before if one.until is not None and one.until > now]
        endpoint = endpoint.model_copy(update={"secrets": (secret, *valid)})
        await self._write(endpoint)
        return endpoint, secret.value

    async def remove(self, endpoint_id: str) -> WebhookEndpoint:
        """With what was not delivered. Raises: WebhookNotFound, BrokerUnavailable"""
        endpoint = await self.get(endpoint_id)
        deletions = (("DEL", key) for key in event_keys(endpoint_id))
        # The endpoint first: an event is filed only for one that is there.
        commands = [("HDEL", BulkKeys.WEBHOOKS, endpoint_id), *deletions]
        with transport.broker_errors():
            await self._redis.exchange(commands)
        return endpoint

    async def get(self, endpoint_id: str) -> WebhookEndpoint:
        """Raises: WebhookNotFound, BrokerUnavailable"""
        for endpoint in await self.read():
            if endpoint.id == endpoint_id:
                return endpoint
        raise WebhookNotFound(
            f"no webhook {endpoint_id[:64]!r}: `rose webhooks list` shows those that there are"
        )

    async def read(self) -> Sequence[WebhookEndpoint]:
        """All, the oldest first. Raises: BrokerUnavailable"""
        began = time.monotonic()
        with transport.broker_errors():
            flat = await self._redis.execute("HGETALL", BulkKeys.WEBHOOKS)
        known = [one for raw in flat[1::2] if (one := _endpoint(raw)) is not None]
        self._known = sorted(known, key=lambda one: (one.created_at, one.id))
        self._read_at = began
        return self._known

    async def known(self) -> Sequence[WebhookEndpoint]:
        """As `read`, or as it was a moment ago. Raises: BrokerUnavailable"""
        if time.monotonic() - self._read_at > FRESH_S:
            return await self.read()
        return self._known

    async def _write(self, endpoint: WebhookEndpoint) -> None:
        with transport.broker_errors():
            await self._redis.execute(
                "HSET", BulkKeys.WEBHOOKS, endpoint.id, endpoint.model_dump_json()
            )


def event_keys(endpoint_id: str) -> tuple[str, str, str, str]:
    """Of an endpoint's events: those that are due, all, their failures, those that are dead."""
    return (
        BulkKeys.webhook_due(endpoint_id),
        BulkKeys.webhook_events(endpoint_id),
        BulkKeys.webhook_failures(endpoint_id),
        BulkKeys.webhook_dead(endpoint_id),
    )


def check_url(url: str) -> None:
    """Raises: InvalidParameter"""
    try:
        parts = urlsplit(url)
        port_is_right = parts.port != 0
    except ValueError:
        raise InvalidParameter(f"url {url[:100]!r}: is none", param="url") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or not port_is_right:
        raise InvalidParameter(f"url {url[:100]!r}: must begin with https://HOST", param="url")
    if parts.username is not None or parts.fragment:
        raise InvalidParameter(
            "url: must have no user name, password or #fragment; requests are signed", param="url"
        )
    if len(url) > _MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidParameter(
            f"url {url[:100]!r}: must be at most {_MAX_URL} characters of visible ASCII",
            param="url",
        )


def _endpoint(raw: Any) -> WebhookEndpoint | None:
    """None: somebody else has written there, or a newer version has."""
    try:
        return WebhookEndpoint.model_validate_json(raw)
    except ValidationError:
        return None


def _new_secret() -> Secret:
    drawn = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    return Secret(value=_SECRET_PREFIX + drawn)
