"""Tenants at the gateway: an API key says whose jobs they are, and nobody else can."""

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from rose.errors import TenantLimited
from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.access.authentication import RequestContext, enter_request
from rose_gateway.errors import api_error
from rose_gateway.http.error_answers import error_response
from rose_producer import Client, ProducerSettings, TenantLimits, Tenants
from tests.support.api_keys import bearer, create_key
from tests.support.batch_lines import completion, raw_line
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.gateway import Deployment, gateway_metrics

RESPONSE = {"model": "null", "input": "ab", "max_output_tokens": 3}
CHAT = {"model": "null", "max_tokens": 3, "messages": [{"role": "user", "content": "ab"}]}


@pytest.fixture
def guarded(start_own_deployment: Callable[..., Deployment]) -> Deployment:
    return start_own_deployment(worker={"min_step_s": 0.01})


def begun(http: httpx.Client, *names: str) -> str:
    """A batch of a line for each name."""
    lines = b"\n".join(raw_line(name, completion("ab") | {"model": "null"}) for name in names)
    sent = http.post("/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", lines)})
    asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
    made = http.post("/batches", json={**asked, "input_file_id": sent.json()["id"]})
    batch_id: str = made.json()["id"]
    return batch_id


def ended(http: httpx.Client, batch_id: str) -> dict[str, Any]:
    """The batch, completed."""
    wait_until(lambda: http.get(f"/batches/{batch_id}").json()["status"] == "completed")
    batch: dict[str, Any] = http.get(f"/batches/{batch_id}").json()
    return batch


def test_what_a_key_asks_for_is_its_tenants(guarded: Deployment) -> None:
    # given: a key of a tenant, and one that is nobody's
    key = create_key(guarded, "--tenant", "mail")
    other = create_key(guarded)
    mine, theirs = bearer(key["secret"]), bearer(other["secret"])
    with Client(redis_url=guarded.redis_url, queue=guarded.queue) as client:

        def asked(path: str, headers: dict[str, str], body: dict[str, object]) -> set[str]:
            """The tenants of the jobs of a request."""
            answer = guarded.post(f"/{path}", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            first = answer.headers["x-rose-job-id"]
            ids = [first, *(f"{first}.{n}" for n in range(1, int(str(body.get("n", 1)))))]
            return {client.job(job_id).status().tenant for job_id in ids}

        # then: of every endpoint, of each choice, and of a repeat
        assert asked("responses", mine, RESPONSE) == {"mail"}
        assert asked("chat/completions", mine, {**CHAT, "n": 2}) == {"mail"}
        for _ in range(2):
            assert asked("responses", {**mine, "idempotency-key": "k"}, RESPONSE) == {"mail"}
        assert asked("responses", theirs, RESPONSE) == {""}
        # and: of the lines of a batch
        with httpx.Client(base_url=guarded.url, headers=mine, timeout=90) as http:
            batch = ended(http, begun(http, "a"))
            output = http.get(f"/files/{batch['output_file_id']}/content").text
        answered = json.loads(output)["response"]["body"]["id"].removeprefix("cmpl-")
        assert client.job(answered).status().tenant == "mail"
        # when: it is given to another tenant
        place = ("--redis-url", guarded.redis_url)
        changed = run_rose("keys", "assign", key["id"], "lab", *place)
        # then: from the next jobs on, as soon as the gateway has read it
        assert changed.stdout == f"{key['id']}: tenant lab\n"
        wait_until(lambda: asked("responses", mine, RESPONSE) == {"lab"})


def test_over_a_tenants_limit_a_request_is_a_429_and_the_lines_of_a_batch_wait(
    guarded: Deployment,
) -> None:
    # given: a tenant that may have one job, and has it
    headers = bearer(create_key(guarded, "--tenant", "mail")["secret"])
    with Tenants(ProducerSettings(redis_url=guarded.redis_url, queue=guarded.queue)) as tenants:
        tenants.set("mail", TenantLimits(max_queued_jobs=1))
    long = {**RESPONSE, "max_output_tokens": 1_000_000, "background": True}
    with httpx.Client(base_url=guarded.url, headers=headers, timeout=90) as http:
        running = http.post("/responses", json=long).json()["id"]
        # when
        refused = http.post("/responses", json=RESPONSE)
        batch_id = begun(http, "a", "b", "c")
        # then
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "tenant_limited")
        assert "max_queued_jobs" in refused.json()["error"]["message"]
        assert refused.headers["x-should-retry"] == "true"
        assert int(refused.headers["retry-after"]) >= 1
        wait_until(lambda: gateway_metrics(guarded.gateway)["rose_gateway_limits_hit_total"] >= 2)
        # when: there is room
        http.post(f"/responses/{running}/cancel")
        # then
        counts = ended(http, batch_id)["request_counts"]
        assert (counts["completed"], counts["failed"]) == (3, 0)


def test_what_was_cached_tells_a_caller_of_its_own_requests_only(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    # given: two keys of one tenant, a key of another, and two that are nobody's
    worker = {"engine": "rose", "device": "cpu", "torch_threads": 1}
    guarded = start_own_deployment(worker=worker)
    tenants = (("--tenant", "mail"), ("--tenant", "mail"), ("--tenant", "lab"), (), ())
    first, second, other, lone, another = (
        bearer(create_key(guarded, *tenant)["secret"]) for tenant in tenants
    )
    story = "Once upon a time there was a little fox who lived in a big wood. " * 3
    model = guarded.get("/models", headers=first).json()["data"][0]["id"]

    def cached(headers: dict[str, str], **more: Any) -> int:
        body = {"model": model, "prompt": story, **more}
        answer = guarded.post("/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    # when, then: the first of a party finds nothing, and those after it do
    assert [cached(who) for who in (first, other, lone, another)] == [0] * 4
    assert all(cached(who) for who in (first, second, other, lone, another))
    # and: a salt divides a party further, and never reaches another
    assert cached(first, cache_salt="s") == cached(lone, cache_salt="s") == 0
    assert cached(second, cache_salt="s") > 0
    for salt in ("mail", "mail//", "mail//s", "/", "//s"):
        assert cached(other, cache_salt=salt) == 0
    # and: a salt that is none
    for wrong in ("", "x" * 257, 1):
        body = {"model": model, "prompt": story, "cache_salt": wrong}
        refused = guarded.post("/completions", json=body, headers=first)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_salt")


def test_the_commands_show_a_key_s_tenant_and_refuse_a_wrong_name(
    own_broker: EmbeddedBroker,
) -> None:
    place = ("--redis-url", own_broker.url)
    secret = run_rose("keys", "create", "ci", "--tenant", "mail", *place).stdout
    assert "mail" in run_rose("keys", "list", *place).stdout
    for words in (("create", "x", "--tenant", "a b"), ("assign", secret.split("-")[1], "a:b")):
        refused = run_rose("keys", *words, *place)
        assert (refused.returncode, "tenant: " in refused.stderr) == (2, True)
    # and a new name of the tenant is that of its keys
    renamed = run_rose("tenants", "rename", "mail", "post", *place)
    assert renamed.stdout == "mail is post now: 0 jobs, 1 API key\n"
    assert "post" in run_rose("keys", "list", *place).stdout
    again = run_rose("tenants", "rename", "mail", "post", *place)
    assert again.stdout == "mail is post now: 0 jobs, 0 API keys\n"


def test_a_tenants_limit_is_a_429_that_says_when_to_come_again() -> None:
    # when
    enter_request(RequestContext("req_test"))
    answer = api_error(TenantLimited("mail", "requests_per_minute", 60, 60, 2.5))
    # then
    assert (answer.status, answer.code, answer.type) == (429, "tenant_limited", "rate_limit_error")
    assert "requests_per_minute" in answer.message
    headers = error_response(answer).headers
    assert (headers["retry-after"], headers["x-should-retry"]) == ("3", "true")
    # and: what never fits need not be tried again
    never = api_error(TenantLimited("mail", "max_queued_tokens", 0, 100, 1.0))
    assert never.status == 429
    assert error_response(never).headers["x-should-retry"] == "false"
