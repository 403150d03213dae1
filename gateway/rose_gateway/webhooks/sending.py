"""One attempt to deliver an event: a POST to an address that may be asked, and nothing further.

No redirect is followed, of the answer only the status counts, and its body is not read.
"""

import asyncio
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import h11

from rose_gateway.storage.webhook_endpoints import WebhookEndpoint
from rose_gateway.storage.webhook_repository import WebhookEvent
from rose_gateway.webhooks.addresses import AddressPolicy, AddressRefused

_USER_AGENT = f"roseinfer/{version('roseinfer')}"
#: Of an answer: its status and headers.
_MAX_HEAD_BYTES = 16 * 1024
_CHUNK_BYTES = 16 * 1024


class NotDelivered(Exception):
    """`retry_after_s`: as the receiver asks for it. `is_final`: it wants no more of them."""

    def __init__(
        self, reason: str, retry_after_s: float | None = None, *, is_final: bool = False
    ) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    encrypted: bool
    path: str
    authority: str

    @classmethod
    def of(cls, url: str) -> "_Target":
        parts = urlsplit(url)
        encrypted = parts.scheme == "https"
        port = parts.port or (443 if encrypted else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname or "", port, encrypted, path, parts.netloc)


class WebhookSender:
    """Belongs to one event loop."""

    def __init__(self, policy: AddressPolicy, timeout_s: float) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()

    async def send(self, endpoint: WebhookEndpoint, event: WebhookEvent) -> None:
        """Returns when the receiver has said that it has it. Raises: NotDelivered"""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._exchange(endpoint, event)
        except TimeoutError:
            raise NotDelivered(f"no answer within {self._timeout_s:g} s") from None
        except AddressRefused as error:
            raise NotDelivered(f"address refused: {error}") from None
        except ssl.SSLError as error:
            raise NotDelivered(f"TLS: {error.reason or error}") from None
        except OSError as error:
            raise NotDelivered(f"connection: {error.strerror or error}") from None
        except h11.RemoteProtocolError as error:
            raise NotDelivered(f"no answer of HTTP: {error}") from None
        _check(answer)

    async def _exchange(self, endpoint: WebhookEndpoint, event: WebhookEvent) -> h11.Response:
        """Raises: AddressRefused, OSError, h11.RemoteProtocolError"""
        target, body = _Target.of(endpoint.url), event.body.encode()
        signed = endpoint.headers(event.id, body, int(time.time()))
        headers = {
            "host": target.authority,
            "user-agent": _USER_AGENT,
            "accept": "*/*",
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **signed,
        }
        reader, writer = await self._connect(target)
        try:
            protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            request = h11.Request(method="POST", target=target.path, headers=list(headers.items()))
            for part in (request, h11.Data(body), h11.EndOfMessage()):
                writer.write(protocol.send(part) or b"")
            await writer.drain()
            while True:
                answer = protocol.next_event()
                if isinstance(answer, h11.Response):
                    return answer
                if answer is h11.NEED_DATA:
                    protocol.receive_data(await reader.read(_CHUNK_BYTES))
        finally:
            # Without the good-bye of TLS, for which a receiver may let us wait.
            writer.transport.abort()

    async def _connect(self, target: _Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises: AddressRefused, OSError: of the last address"""
        addresses = await self._policy.resolve(target.host, target.port, encrypted=target.encrypted)
        # The address was checked, and the certificate must be that of the name.
        tls: dict[str, Any] = {}
        if target.encrypted:
            tls = {"ssl": self._tls, "server_hostname": target.host}
        for address in addresses[:-1]:
            with suppress(OSError):
                return await asyncio.open_connection(address, target.port, **tls)
        return await asyncio.open_connection(addresses[-1], target.port, **tls)


def _check(answer: h11.Response) -> None:
    """Raises: NotDelivered"""
    status = answer.status_code
    if 200 <= status < 300:
        return
    asked = next((value for name, value in answer.headers if name == b"retry-after"), b"")
    redirect = "; redirects are not followed" if 300 <= status < 400 else ""
    raise NotDelivered(
        f"answered {status}{redirect}",
        float(asked) if asked.isdigit() and len(asked) < 10 else None,
        is_final=status == HTTPStatus.GONE,
    )
