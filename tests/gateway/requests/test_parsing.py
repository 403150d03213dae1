"""From a body to its model, or to one refusal that names the field."""

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from rose_gateway.requests.bad_request import BadRequest
from rose_gateway.requests.parsing import parse
from rose_gateway.requests.sampling import RequestModel

UNSUPPORTED = {"audio": ((), "this server's models make text alone"), "kinds": ((["text"],), "no")}


class Dog(RequestModel):
    kind: Literal["dog"]
    barks: bool


class Cat(RequestModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(le=9)]


class Zoo(RequestModel):
    name: str
    pets: list[Annotated[Dog | Cat, Field(discriminator="kind")]] = Field(default_factory=list)
    note: str | list[str] | None = None


def read(body: Any) -> Zoo:
    return parse(Zoo, json.dumps(body).encode(), UNSUPPORTED)


def test_a_body_becomes_its_model() -> None:
    zoo = read({"name": "Z", "pets": [{"kind": "cat", "lives": 9}], "note": ["a"]})

    assert zoo == Zoo(name="Z", pets=[Cat(kind="cat", lives=9)], note=["a"])


def test_a_body_may_begin_with_a_byte_order_mark() -> None:
    assert parse(Zoo, '{"name": "é"}'.encode("utf-8-sig")) == Zoo(name="é")


@pytest.mark.parametrize(
    "more",
    [
        *({"audio": None}, {"audio": False}, {"audio": {}}, {"kinds": None}, {"kinds": ["text"]}),
        *({"zoo": None}, {"zoo": False}, {"zoo": {}}, {"zoo": []}, {"zoo": ""}),
        {"reasoning": {"effort": "high", "enabled": False}},
        {"reasoning": {"effort": None, "summary": "auto"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "disabled", "budget_tokens": 1024}},
        {"pets": [{"kind": "cat", "lives": 9, "cache_control": None}]},
    ],
)
def test_what_asks_for_nothing_is_accepted(more: dict[str, Any]) -> None:
    assert read({"name": "Z", **more}).model_copy(update={"pets": []}) == Zoo(name="Z")


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"enabled": True}},
        {"enable_thinking": False},
        {"think": False},
        {"zoo": 0},
        {"zoo": [None]},
    ],
)
def test_what_asks_for_something_is_not_dropped(more: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read({"name": "Z", **more})


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "name", "missing_required_parameter"),
        ({"name": 3}, "name", "invalid_value"),
        ({"name": "Z", "audio": {"voice": "alloy"}}, "audio", "unsupported_parameter"),
        ({"name": "Z", "kinds": ["audio"]}, "kinds", "unsupported_parameter"),
        ({"name": "Z", "zoo": 1}, "zoo", "unknown_parameter"),
        ({"name": "Z", "pets": [{}]}, "pets[0].kind", "missing_required_parameter"),
        ({"name": "Z", "pets": [{"kind": "cow"}]}, "pets[0].kind", "invalid_value"),
        ({"name": "Z", "pets": [{"kind": "dog"}]}, "pets[0].barks", "missing_required_parameter"),
        ({"name": "Z", "pets": [{"kind": "cat", "lives": 10}]}, "pets[0].lives", "invalid_value"),
        ({"name": "Z", "note": ["a", 1]}, "note[1]", "invalid_value"),
        ({"name": "Z", "note": 7}, "note", "invalid_value"),
        ([], None, "invalid_value"),
    ],
)
def test_a_refusal_names_the_field(body: Any, param: str | None, code: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(body)

    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"name": NaN}', b'{"name": "\\ud800"}', b"\xff", b"[" * 100_000, b'{"a":1e999}'],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(Zoo, body)
