"""API keys: who is let in, and that a key sees its own jobs only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx2 as httpx
import pytest
import redis
from openai import AuthenticationError

from rose import transport
from rose_cli.demo.broker import EmbeddedBroker
from rose_gateway.access.keys import KEYS, ApiKey, KeyLimits, KeyNotFound, Keys
from rose_producer import ProducerSettings
from tests.support.api_keys import bearer, create_key
from tests.support.bench import wait_until
from tests.support.command import run_rose as rose
from tests.support.gateway import Deployment

CHAT = {"model": "null", "max_tokens": 3, "messages": [{"role": "user", "content": "ab"}]}


@pytest.fixture
async def keys(own_broker: EmbeddedBroker) -> AsyncIterator[Keys]:
    client = transport.AsyncRedisClient(ProducerSettings(redis_url=own_broker.url))
    yield Keys(client)
    await client.aclose()


async def test_a_key_is_known_by_its_secret_alone(keys: Keys) -> None:
    # given
    key, secret = await keys.create("ci", KeyLimits(max_jobs=3))
    # then
    assert await keys.of_secret(secret) == key
    assert key.limits.max_jobs == 3
    other = f"rose-{key.id}-{'x' * 43}"
    for wrong in (other, secret[:-1], secret.upper(), "", "rose-", f"rose-{'0' * 12}-{'x' * 43}"):
        assert await keys.of_secret(wrong) is None


async def test_redis_holds_no_secret(keys: Keys, own_broker: EmbeddedBroker) -> None:
    key, secret = await keys.create("ci", KeyLimits())
    with redis.Redis(port=own_broker.port, protocol=2) as raw:
        stored = raw.hgetall(KEYS)
    assert list(stored) == [key.id.encode()]
    assert secret.split("-", 2)[2].encode() not in b"".join(stored.values())
    assert ApiKey.model_validate_json(stored[key.id.encode()]) == key


async def test_a_revoked_key_is_refused(keys: Keys) -> None:
    key, secret = await keys.create("ci", KeyLimits())
    revoked = await keys.revoke(key.id)
    assert revoked.revoked is not None
    assert await keys.revoke(key.id) == revoked  # again
    assert await keys.of_secret(secret) is None
    with pytest.raises(KeyNotFound, match="rose keys list"):
        await keys.revoke("000000000000")


async def test_what_is_no_key_in_redis_lets_nobody_in(
    keys: Keys, own_broker: EmbeddedBroker
) -> None:
    with redis.Redis(port=own_broker.port, protocol=2) as raw:
        raw.hset(KEYS, mapping={"0" * 12: "not JSON", "1" * 12: "{}"})
    assert await keys.of_secret(f"rose-{'0' * 12}-{'x' * 43}") is None
    assert await keys.list() == []
    assert await keys.exist()


@pytest.fixture
def guarded(start_own_deployment: Callable[..., Deployment]) -> Deployment:
    return start_own_deployment(log_level="debug", log_format="json", worker={"min_step_s": 0.02})


def test_once_there_is_a_key_nobody_comes_in_without(guarded: Deployment) -> None:
    # given: a gateway without keys
    url = f"{guarded.url}/models"
    assert httpx.get(url, timeout=90).status_code == 200
    # when
    secret = create_key(guarded)["secret"]
    # then
    wait_until(lambda: httpx.get(url, timeout=90).status_code == 401)
    missing = httpx.get(url, timeout=90)
    assert missing.json()["error"]["code"] == "missing_api_key"
    assert missing.headers["www-authenticate"] == "Bearer"
    assert missing.headers["x-should-retry"] == "false"
    with guarded.openai(api_key="sk-wrong") as ai, pytest.raises(AuthenticationError) as wrong:
        ai.models.list()
    assert wrong.value.code == "invalid_api_key"
    assert httpx.get(url, headers=bearer(secret), timeout=90).status_code == 200
    assert httpx.get(f"{guarded.origin}/healthz", timeout=90).status_code == 200


def test_keys_see_neither_each_others_jobs_nor_idempotency_keys(guarded: Deployment) -> None:
    # given
    mine, theirs = create_key(guarded), create_key(guarded)
    same = {"idempotency-key": "once"}
    url = f"{guarded.url}/responses"
    body = {"model": "null", "input": "ab", "max_output_tokens": 3}
    # when
    first = httpx.post(url, json=body, headers={**bearer(mine["secret"]), **same}, timeout=90)
    second = httpx.post(url, json=body, headers={**bearer(theirs["secret"]), **same}, timeout=90)
    # then: the same Idempotency-Key is another's own
    assert first.status_code == second.status_code == 200, first.text
    response_id = first.json()["id"]
    assert response_id != second.json()["id"]
    for method, path in [
        ("GET", response_id),
        ("GET", f"{response_id}?stream=true"),
        ("GET", f"{response_id}/input_items"),
        ("POST", f"{response_id}/cancel"),
        ("DELETE", response_id),
    ]:
        answer = httpx.request(
            method, f"{url}/{path}", headers=bearer(theirs["secret"]), timeout=90
        )
        assert answer.status_code == 404, path
    own = httpx.get(f"{url}/{response_id}", headers=bearer(mine["secret"]), timeout=90)
    assert own.json()["id"] == response_id
    # and: a repeat is the first again, another body is refused
    again = httpx.post(url, json=body, headers={**bearer(mine["secret"]), **same}, timeout=90)
    assert again.json()["id"] == response_id
    other = httpx.post(
        url, json={**body, "input": "x"}, headers={**bearer(mine["secret"]), **same}, timeout=90
    )
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_in_use")
    assert other.headers["x-should-retry"] == "false"


def test_what_a_key_may_not_use_is_403(guarded: Deployment) -> None:
    secret = create_key(guarded, "--model", "another", "--max-priority", "low")["secret"]
    answer = guarded.post("/chat/completions", json=CHAT, headers=bearer(secret))
    assert (answer.status_code, answer.json()["error"]["param"]) == (403, "model")


def test_a_key_is_held_to_its_limits_and_told_how_much_is_left(guarded: Deployment) -> None:
    # given
    secret = create_key(guarded, "--requests-per-minute", "2", "--max-jobs", "1")["secret"]
    url = f"{guarded.url}/responses"
    long = {"model": "null", "input": "ab", "max_output_tokens": 100_000, "background": True}
    # when: a job runs
    running = httpx.post(url, json=long, headers=bearer(secret), timeout=90)
    assert running.status_code == 200, running.text
    assert running.headers["x-ratelimit-limit-requests"] == "2"
    assert running.headers["x-ratelimit-remaining-requests"] == "1"
    # then: another is one too many, and does not count
    refused = httpx.post(url, json=long, headers=bearer(secret), timeout=90)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "max_jobs")
    assert refused.headers["x-should-retry"] == "true"
    assert int(refused.headers["retry-after"]) >= 1
    # and: reading is free
    response_id = running.json()["id"]
    for _ in range(5):
        assert (
            httpx.get(f"{url}/{response_id}", headers=bearer(secret), timeout=90).status_code == 200
        )
    # when: it has ended, though this gateway did not see it
    httpx.post(f"{url}/{response_id}/cancel", headers=bearer(secret), timeout=90)
    short = {**long, "max_output_tokens": 1, "background": False}

    def served() -> bool:
        answer = httpx.post(url, json=short, headers=bearer(secret), timeout=90)
        assert answer.status_code == 200 or answer.json()["error"]["code"] == "max_jobs"
        return answer.status_code == 200

    wait_until(served)
    # then: requests are used up, but for those that come back in half a minute each
    for _ in range(5):
        spent = httpx.post(url, json=short, headers=bearer(secret), timeout=90)
        if spent.status_code != 200:
            break
    assert (spent.status_code, spent.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert spent.headers["x-ratelimit-remaining-requests"] == "0"


def test_nothing_in_the_log_is_a_secret_or_a_prompt(guarded: Deployment) -> None:
    # given: every way in which a secret and a prompt may come
    secret = create_key(guarded)["secret"]
    chat = {**CHAT, "messages": [{"role": "user", "content": "PROMPT"}]}
    url = f"{guarded.url}/chat/completions"
    # when
    for body in (chat, {**chat, "temperature": "PROMPT"}, {**chat, "stream": True}):
        httpx.post(url, json=body, headers=bearer(secret), timeout=90)
    httpx.post(url, content=b'{"PROMPT', headers=bearer(secret), timeout=90)
    httpx.post(url, json=chat, headers=bearer(secret + "x"), timeout=90)
    guarded.get(f"/responses/PROMPT?key={secret}", headers=bearer(secret))
    httpx.get(f"{guarded.origin}/{secret}/PROMPT", timeout=90)
    guarded.gateway.terminate()
    # then
    lines = [json.loads(line) for line in guarded.gateway.log.splitlines()]
    served = [line for line in lines if line["logger"] == "rose.gateway.access"]
    assert sorted(line["status"] for line in served) == [200, 200, 400, 400, 401, 404, 404]
    assert {line["route"] for line in served} == {
        "/v1/chat/completions",
        "/v1/responses/{response_id}",
        "other",
    }
    assert {line.get("key") for line in served} == {None, secret.split("-")[1]}
    for word in ("PROMPT", secret, secret.split("-", 2)[2]):
        assert word not in guarded.gateway.log


def test_the_commands_show_and_revoke_keys(own_broker: EmbeddedBroker) -> None:
    place = ("--redis-url", own_broker.url)
    assert "open to all" in rose("keys", "list", *place).stdout
    secret = rose("keys", "create", "ci", "--tokens-per-minute", "100", *place).stdout.strip()
    key_id = secret.split("-")[1]
    other_id = rose("keys", "create", "other", *place).stdout.split("-")[1]
    assert rose("keys", "revoke", other_id, *place).stdout == f"revoked {other_id}\n"
    listed = rose("keys", "list", *place).stdout
    assert all(word in listed for word in (key_id, "ci", "tokens_per_minute=100"))
    assert secret.split("-", 2)[2] not in listed
    last = rose("keys", "revoke", key_id, *place).stdout
    assert last.startswith(f"revoked {key_id}, the last one: gateways go on asking for a key")
    facts = [
        json.loads(line) for line in rose("keys", "list", "--json", *place).stdout.splitlines()
    ]
    assert [fact["revoked"] is not None for fact in facts] == [True, True]
    assert all("secret_sha256" not in fact for fact in facts)
    refused = rose("keys", "revoke", "0", *place)
    assert refused.returncode == 1
