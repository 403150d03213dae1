"""API keys: who is let in, and that a key sees its own jobs only."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import httpx2 as httpx
import pytest
import redis
from openai import AuthenticationError

from rose import transport
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.keys import KEYS, ApiKey, KeyNotFound, Keys
from rose_gateway.settings import KeyLimits
from rose_producer import ProducerSettings
from tests.support.api_keys import bearer, create_key
from tests.support.bench import wait_until
from tests.support.command import run_rose as rose
from tests.support.gateway import Deployment

NewClient = Callable[..., httpx.Client]

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


@pytest.fixture
def new_client(guarded: Deployment) -> Iterator[NewClient]:
    """Creates API keys, and clients that use them."""
    with ExitStack() as stack:

        def create(*options: str) -> httpx.Client:
            headers = bearer(create_key(guarded, *options)["secret"])
            client = httpx.Client(base_url=guarded.url, headers=headers, timeout=90)
            return stack.enter_context(client)

        yield create


def test_once_there_is_a_key_nobody_comes_in_without(
    guarded: Deployment, new_client: NewClient
) -> None:
    # given: a gateway without keys
    assert guarded.get("/models").status_code == 200
    # when
    client = new_client()
    # then
    wait_until(lambda: guarded.get("/models").status_code == 401)
    missing = guarded.get("/models")
    assert missing.json()["error"]["code"] == "missing_api_key"
    assert missing.headers["www-authenticate"] == "Bearer"
    assert missing.headers["x-should-retry"] == "false"
    with guarded.openai(api_key="sk-wrong") as ai, pytest.raises(AuthenticationError) as wrong:
        ai.models.list()
    assert wrong.value.code == "invalid_api_key"
    assert client.get("/models").status_code == 200
    assert httpx.get(f"{guarded.origin}/healthz", timeout=90).status_code == 200


def test_keys_see_neither_each_others_jobs_nor_idempotency_keys(new_client: NewClient) -> None:
    # given
    mine, theirs = new_client(), new_client()
    same = {"idempotency-key": "once"}
    body = {"model": "null", "input": "ab", "max_output_tokens": 3}
    # when
    first, second = (one.post("/responses", json=body, headers=same) for one in (mine, theirs))
    # then: the same Idempotency-Key is another's own
    assert first.status_code == second.status_code == 200, first.text
    response_id = first.json()["id"]
    assert response_id != second.json()["id"]
    own, job = f"/responses/{response_id}", f"/jobs/{first.headers['x-rose-job-id']}"
    for method, path in [
        ("GET", own),
        ("GET", f"{own}?stream=true"),
        ("GET", f"{own}/input_items"),
        ("POST", f"{own}/cancel"),
        ("DELETE", own),
        ("GET", job),
        ("GET", f"{job}/events"),
        ("GET", f"{job}/stream/text"),
        ("GET", f"{job}/stream/events?offset=-1&live=sse"),
        ("HEAD", f"{job}/stream/events"),
        ("POST", f"{job}/cancel"),
    ]:
        assert theirs.request(method, path).status_code == 404, path
    for path in (own, job, f"{job}/events", f"{job}/stream/text"):
        assert mine.get(path).status_code == 200, path
    # and: a repeat is the first again, another body is refused
    assert mine.post("/responses", json=body, headers=same).json()["id"] == response_id
    other = mine.post("/responses", json={**body, "input": "x"}, headers=same)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_in_use")
    assert other.headers["x-should-retry"] == "false"
    # and: nobody goes on from another's response
    item = {"type": "item_reference", "id": first.json()["output"][0]["id"]}
    for more, code in (
        ({"previous_response_id": response_id}, "previous_response_not_found"),
        ({"input": [item]}, "item_not_found"),
    ):
        chained = theirs.post("/responses", json={**body, **more})
        assert (chained.status_code, chained.json()["error"]["code"]) == (404, code)
        assert mine.post("/responses", json={**body, **more}).status_code == 200


def test_a_key_of_low_priority_is_served_so_without_asking(new_client: NewClient) -> None:
    low = new_client("--max-priority", "low")
    body = {"model": "null", "input": "ab", "max_output_tokens": 2}
    served = low.post("/responses", json=body)
    urgent = low.post("/responses", json={**body, "service_tier": "priority"})
    assert served.json()["service_tier"] == "flex"
    assert (urgent.status_code, urgent.json()["error"]["code"]) == (403, "priority_not_allowed")


def test_a_key_is_held_to_its_limits_and_told_how_much_is_left(new_client: NewClient) -> None:
    # given
    client = new_client("--requests-per-minute", "2", "--max-jobs", "1")
    long = {"model": "null", "input": "ab", "max_output_tokens": 100_000, "background": True}
    # when: a job runs
    running = client.post("/responses", json=long)
    assert running.status_code == 200, running.text
    assert running.headers["x-ratelimit-limit-requests"] == "2"
    assert running.headers["x-ratelimit-remaining-requests"] == "1"
    # then: another is one too many, and does not count
    refused = client.post("/responses", json=long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "max_jobs")
    assert refused.headers["x-should-retry"] == "true"
    assert int(refused.headers["retry-after"]) >= 1
    # and: reading is free
    url = f"/responses/{running.json()['id']}"
    assert [client.get(url).status_code for _ in range(5)] == [200] * 5
    # when: it has ended, though this gateway did not see it
    client.post(f"{url}/cancel")
    short = {**long, "max_output_tokens": 1, "background": False}

    def served() -> bool:
        answer = client.post("/responses", json=short)
        assert answer.status_code == 200 or answer.json()["error"]["code"] == "max_jobs"
        return answer.status_code == 200

    wait_until(served)
    # then: requests are used up, but for those that come back in half a minute each
    for _ in range(5):
        spent = client.post("/responses", json=short)
        if spent.status_code != 200:
            break
    assert (spent.status_code, spent.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert spent.headers["x-ratelimit-remaining-requests"] == "0"


def test_files_batches_and_reads_of_a_key_are_bounded_too(new_client: NewClient) -> None:
    # given
    client = new_client(
        *("--max-files", "3", "--max-stored-bytes", "1000", "--max-unfinished-batches", "1"),
        *("--requests-per-minute", "8", "--reads-per-minute", "4"),
    )

    def code(answer: httpx.Response) -> tuple[int, str | None]:
        error = answer.json().get("error", {"code": None})
        assert answer.status_code == 200 or answer.headers["x-should-retry"] in ("true", "false")
        return answer.status_code, error["code"]

    def upload(content: bytes) -> httpx.Response:
        form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
        return client.post("/files", **form)

    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    body = {"model": "null", "prompt": "ab", "max_tokens": 100_000}
    # when: bytes, of which nothing is kept then
    source = upload(json.dumps({**line, "body": body}).encode())
    assert code(source) == (200, None)
    assert code(upload(b"x" * 1000)) == (429, "quota_exceeded")
    # then: batches, of which one runs
    batch = {
        "input_file_id": source.json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    assert code(client.post("/batches", json=batch)) == (200, None)
    assert code(client.post("/batches", json=batch)) == (429, "quota_exceeded")
    # and: the number of files, those that a batch would write among them
    assert [code(upload(b"a")) for _ in range(3)] == [*[(200, None)] * 2, (429, "quota_exceeded")]
    refused = client.post("/batches", json=batch)
    assert code(refused) == (429, "quota_exceeded")
    assert refused.json()["error"]["type"] == "insufficient_quota"
    # and: each of them was a request
    assert code(upload(b"a")) == (429, "rate_limit_exceeded")
    assert code(client.post("/batches", json=batch)) == (429, "rate_limit_exceeded")
    # and: lists, replays, downloads and deletions are reads
    file = f"/files/{source.json()['id']}"
    for path in ("/files", f"{file}/content", file):
        assert client.get(path).status_code == 200
    assert client.delete("/responses/resp_unknown").status_code == 404
    assert code(client.get("/jobs")) == (429, "rate_limit_exceeded")
    assert code(client.get("/jobs/unknown/events")) == (429, "rate_limit_exceeded")


def test_a_key_without_limits_of_its_own_has_the_gateways(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    # given
    limits = json.dumps({"reads_per_minute": 2, "max_jobs": 7})
    gateway = start_own_deployment(key_limits=limits)
    # then: all who come without a key share them
    assert [gateway.get("/models").status_code for _ in range(3)] == [200, 200, 429]
    # and: a key has each that it does not say
    headers = bearer(create_key(gateway, "--max-jobs", "1")["secret"])
    read = [gateway.get("/models", headers=headers).status_code for _ in range(3)]
    assert read == [200, 200, 429]
    own = create_key(gateway, "--reads-per-minute", "9")["secret"]
    assert [gateway.get("/models", headers=bearer(own)).status_code for _ in range(4)] == [200] * 4


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
    made = rose("keys", "create", "ci", "--tokens-per-minute", "100", *place)
    secret = made.stdout.strip()
    key_id = secret.split("-")[1]
    assert made.stderr == f"key {key_id}; its secret is shown this once:\n"
    other_id = rose("keys", "create", "other", *place).stdout.split("-")[1]
    assert rose("keys", "revoke", other_id, *place).stdout == f"revoked {other_id} (other)\n"
    listed = rose("keys", "list", *place).stdout
    assert all(word in listed for word in (key_id, "ci", "tokens_per_minute=100"))
    assert secret.split("-", 2)[2] not in listed
    last = rose("keys", "revoke", key_id, *place).stdout
    assert last.startswith(f"revoked {key_id} (ci), the last one: gateways go on asking for a key")
    facts = [
        json.loads(line) for line in rose("keys", "list", "--json", *place).stdout.splitlines()
    ]
    assert [fact["revoked"] is not None for fact in facts] == [True, True]
    assert all("secret_sha256" not in fact for fact in facts)
    refused = rose("keys", "revoke", "0", *place)
    assert refused.returncode == 1


def test_a_key_is_revoked_by_its_name_unless_several_have_it(own_broker: EmbeddedBroker) -> None:
    place = ("--redis-url", own_broker.url)

    def create(name: str) -> str:
        return str(json.loads(rose("keys", "create", name, "--json", *place).stdout)["id"])

    # given
    first, second, other = create("mail"), create("mail"), create("chat")
    # when, then
    assert rose("keys", "revoke", "chat", *place).stdout.startswith(f"revoked {other} (chat)")
    refused = rose("keys", "revoke", "mail", *place)
    assert refused.returncode == 2
    assert first in refused.stderr
    assert second in refused.stderr
    # and one that is revoked is in nobody's way
    rose("keys", "revoke", first, *place)
    assert f"{second}: tenant lab" in rose("keys", "assign", "mail", "lab", *place).stdout
    assert rose("keys", "revoke", "mail", *place).stdout.startswith(f"revoked {second} (mail)")
    assert "no key mail" in rose("keys", "revoke", "mail", *place).stderr
