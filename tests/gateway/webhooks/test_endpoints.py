"""Endpoints: their URLs, their secrets, and what is signed with them."""

import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from rose import transport
from rose.errors import InvalidParameter
from rose.settings import QueueSettings
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.storage.webhook_endpoints import WebhookEndpoints, WebhookNotFound, check_url
from rose_gateway.storage.webhook_repository import WebhookEvent
from tests.support.webhook_receiver import endpoint_at

EVENT = WebhookEvent.of("response.completed", "resp_0-a", 1_700_000_000)
URL = "https://example.com/hook"


def is_signed_by(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """As both libraries judge it."""
    with OpenAI(api_key="none", webhook_secret=secret) as client:
        try:
            client.webhooks.unwrap(body, headers)
            unwrapped = True
        except InvalidWebhookSignatureError:
            unwrapped = False
    try:
        Webhook(secret).verify(body, headers)
        verified = True
    except WebhookVerificationError:
        verified = False
    assert verified == unwrapped
    return verified


async def test_a_rotated_secret_signs_beside_the_new_one_for_a_while(
    own_broker: EmbeddedBroker,
) -> None:
    redis = transport.AsyncRedisClient(QueueSettings(redis_url=own_broker.url))
    try:
        # given
        endpoints, body, now = WebhookEndpoints(redis), EVENT.body.encode(), int(time.time())
        endpoint, first = await endpoints.add(URL)
        # when
        _, second = await endpoints.rotate(endpoint.id, 3600)
        (rotated,) = await endpoints.read()
        _, third = await endpoints.rotate(endpoint.id, 0)
        (at_once,) = await endpoints.read()
        # then
        signed = {
            "before": endpoint.headers(EVENT.id, body, now),
            "both": rotated.headers(EVENT.id, body, now),
            "later": rotated.headers(EVENT.id, body, now + 3700),
            "at once": at_once.headers(EVENT.id, body, now + 1),
        }
        drawn = (first, second, third)
        signers = {
            name: [is_signed_by(secret, signed[name], body) for secret in drawn]
            for name in ("before", "both", "at once")
        }
        assert signers == {
            "before": [True, False, False],
            "both": [True, True, False],
            "at once": [False, False, True],
        }
        assert signed["both"]["webhook-signature"].count("v1,") == 2
        assert signed["later"]["webhook-signature"].count("v1,") == 1
        for secret in drawn:
            assert secret not in repr((endpoint, rotated, at_once))
        with pytest.raises(WebhookNotFound, match="rose webhooks list"):
            await endpoints.rotate("wh_none", 0)
    finally:
        await redis.aclose()


def test_a_changed_body_is_found_out() -> None:
    endpoint, body = endpoint_at(URL), EVENT.body.encode()
    headers = endpoint.headers(EVENT.id, body, int(time.time()))
    secret = endpoint.secrets[0].value
    assert is_signed_by(secret, headers, body)
    assert not is_signed_by(secret, headers, body.replace(b"resp_0", b"resp_1"))
    assert not is_signed_by(secret, headers | {"webhook-id": "evt_other"}, body)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a", "https://", "a.example", "https://user:pass@a.example", "https://a/#b"),
        *("https://a:0/", "https://a:b/", "https://a/ b", "https://ä.example", "https://[::1"),
        "https://a/" + "x" * 2048,
    ],
)
def test_what_is_no_url_of_a_webhook_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameter, match="url"):
        check_url(url)


def test_an_event_is_the_same_whoever_makes_it() -> None:
    assert WebhookEvent.of("response.completed", "resp_0-a", 1_700_000_000) == EVENT
    assert WebhookEvent.of("response.failed", "resp_0-a", 1_700_000_000).id != EVENT.id
