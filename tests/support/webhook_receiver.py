"""A receiver of webhooks in this process, which answers as a test says."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from openai import OpenAI
from standardwebhooks.webhooks import Webhook

from rose_gateway.storage.webhook_endpoints import WebhookEndpoint

#: What a gateway must be told to deliver here.
LOOPBACK = "127.0.0.0/8,::1/128"


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: Mapping[str, str]
    """names in lower case"""
    body: bytes

    def verified(self, secret: str) -> Any:
        """The event, as both libraries that receivers use read it.

        Raises: WebhookVerificationError, InvalidWebhookSignatureError
        """
        event = Webhook(secret).verify(self.body, dict(self.headers))
        with OpenAI(api_key="none", webhook_secret=secret) as client:
            unwrapped = client.webhooks.unwrap(self.body, self.headers)
        assert (unwrapped.id, unwrapped.type) == (event["id"], event["type"])
        return event


class Receiver:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?from=rose"
        self.received: list[Received] = []
        self.answers: Callable[[Received], tuple[int, Mapping[str, str]]] = lambda _: (204, {})

    @property
    def ids(self) -> list[str]:
        return [one.headers["webhook-id"] for one in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            one = Received(self.path, headers, body)
            receiver.received.append(one)
            status, more = receiver.answers(one)
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Whoever sends does not wait for the end of an answer."""

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_address[1])
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def endpoint_at(url: str, **fields: Any) -> WebhookEndpoint:
    """As `rose webhooks add` makes one, without Redis."""
    secret = {"value": "whsec_" + "c2VjcmV0" * 5}
    given = {"id": "wh_1", "created_at": 0, "event_types": (), "secrets": (secret,), **fields}
    return WebhookEndpoint.model_validate({"url": url, **given})
