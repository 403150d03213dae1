"""Without keys, a gateway on loopback serves programs of this machine and no page elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

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
    ],
)
def test_pages_of_others_do_not(
    deployment: Deployment, headers: dict[str, str], named: str
) -> None:
    answer = models(deployment, **headers)

    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "foreign_origin"
    assert f"the {named} of this request" in error["message"]


def test_who_serves_everybody_serves_them_too(
    start_deployment: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSE_GATEWAY_OPEN", "true")
    deployment = start_deployment()

    assert models(deployment, origin="https://somewhere.example").status_code == 200
