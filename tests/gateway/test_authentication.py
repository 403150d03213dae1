"""Without keys, a door on loopback is open to programs of this machine and to no page elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest

from tests.support.gateway import RunningDoor


def models(door: RunningDoor, **headers: str) -> httpx2.Response:
    return httpx2.get(f"{door.url}/models", headers=headers, timeout=60)


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
def test_programs_of_this_machine_come_in(door: RunningDoor, headers: dict[str, str]) -> None:
    assert models(door, **headers).status_code == 200


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
def test_pages_of_others_do_not(door: RunningDoor, headers: dict[str, str], named: str) -> None:
    answer = models(door, **headers)

    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "foreign_origin"
    assert f"the {named} of this request" in error["message"]


def test_who_serves_everybody_serves_them_too(
    start_door: Callable[..., RunningDoor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSE_GATEWAY_OPEN", "true")
    door = start_door()

    assert models(door, origin="https://somewhere.example").status_code == 200
