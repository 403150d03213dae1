"""A gateway serves programs, and web pages of its own or that it was told of."""

from collections.abc import Callable

import httpx2
import pytest

from rose.web_access import WebAccess
from tests.support.gateway import Deployment


def models(deployment: Deployment, **headers: str) -> httpx2.Response:
    return deployment.get("/models", headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:8080"},
        {"host": "[::1]:8080"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1"},
    ],
)
def test_programs_of_this_machine_come_in(deployment: Deployment, headers: dict[str, str]) -> None:
    assert models(deployment, **headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"origin": "https://somewhere.example"}, "origin"),
        ({"origin": "null"}, "origin"),
        ({"origin": "http://[::1"}, "origin"),
        ({"host": "bent.example:8080"}, "host"),
        ({"host": "localhost.example"}, "host"),
        ({"sec-fetch-site": "cross-site"}, "sec-fetch-site"),
    ],
)
def test_pages_of_others_do_not(
    deployment: Deployment, headers: dict[str, str], named: str
) -> None:
    setting = "HOSTS" if named == "host" else "ORIGINS"
    answer = models(deployment, **headers)

    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "foreign_origin"
    assert f"the {named} of this request" in error["message"]
    assert f"ROSE_GATEWAY_ALLOWED_{setting}" in error["message"]


@pytest.fixture
def opened(start_deployment: Callable[..., Deployment]) -> Callable[..., Deployment]:
    """As compose has it: everybody who reaches it may use it, without a key."""
    return lambda **settings: start_deployment(open=True, **settings)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/status", "/metrics", "/", "/healthz"])
def test_a_gateway_for_everybody_serves_no_foreign_page(
    opened: Callable[..., Deployment], path: str
) -> None:
    url = opened().origin + path
    assert httpx2.get(url).status_code == 200
    for headers in (
        {"origin": "https://somewhere.example", "content-type": "text/plain"},
        {"host": "bent.example:8080"},
        {"host": "bent.example:8080", "origin": "http://bent.example:8080"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert httpx2.get(url, headers=headers).status_code == 403


def test_names_and_pages_that_it_was_told_of_come_in(opened: Callable[..., Deployment]) -> None:
    deployment = opened(
        allowed_hosts="gateway, *.svc.example", allowed_origins="https://chat.example"
    )
    page = {"origin": "https://chat.example", "sec-fetch-site": "cross-site"}

    for headers in (
        {"host": "gateway:8080"},
        {"host": "GATEWAY"},
        {"host": "rose.svc.example"},
        page,
        {"host": "gateway:8080", "origin": "http://gateway:8080"},
    ):
        assert models(deployment, **headers).status_code == 200
    assert models(deployment, host="svc.example").status_code == 403
    assert models(deployment, origin="https://chat.example.org").status_code == 403


def test_a_link_to_the_page_is_followed(deployment: Deployment) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert httpx2.get(deployment.origin + "/", headers=headers).status_code == 200
    assert models(deployment, **headers).status_code == 403


def test_the_address_at_which_a_connection_arrives_is_the_gateways() -> None:
    access = WebAccess("0.0.0.0")

    assert access.foreign({"host": "10.1.2.3:8080"}, "10.1.2.3") is None
    assert access.foreign({"host": "10.1.2.4:8080"}, "10.1.2.3") == "host"
    assert access.foreign({"host": "[fd00::1]:8080"}, "fd00::1") is None


PAGE = "https://chat.example.com"


def test_a_page_that_is_named_reads_answers_of_any_kind(
    start_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_deployment(allowed_origins=PAGE)
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    # when
    before = deployment.request("OPTIONS", "/messages", headers={"origin": PAGE, **asked})
    # then
    assert before.status_code == 204
    assert before.headers["access-control-allow-headers"] == "x-api-key"
    body = {"model": "null", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    for answer in (
        models(deployment, origin=PAGE),
        deployment.get("/nothing", headers={"origin": PAGE}),
        deployment.post("/messages", json={**body, "stream": True}, headers={"origin": PAGE}),
    ):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "Origin"
    # and: nobody else does
    other = models(deployment, origin="https://other.example.com")
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers
    refused = deployment.request("OPTIONS", "/models", headers={"origin": "https://a.b", **asked})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in models(deployment).headers
