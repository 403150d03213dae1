"""An answer says what a grammar does not follow of the schema of its text, in every API."""

from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.sdk.deployments import CHAT, Deployment
from tests.gateway.test_warnings import APIS, found

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
NAMED = {"name": "n", "schema": SCHEMA, "strict": False}
FORMATS: dict[str, tuple[str, Any]] = {
    "/chat/completions": ("response_format", {"type": "json_schema", "json_schema": NAMED}),
    "/completions": ("response_format", {"type": "json_schema", "json_schema": NAMED}),
    "/responses": ("text", {"format": {"type": "json_schema", **NAMED}}),
    "/messages": ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FORMATS)
def test_an_answer_says_what_its_text_is_not_held_to(
    deployment: Deployment, path: str, stream: bool
) -> None:
    name, value = FORMATS[path]
    body = {**APIS.get(path, {"prompt": "hi"}), "model": CHAT, name: value, "stream": stream}

    answer = httpx.post(deployment.url + path, json=body, timeout=90)

    assert answer.status_code == 200, answer.text
    told = list(found(answer.text if stream else answer.json()))
    assert told
    for (warning,) in told:
        assert warning["code"] == "schema_not_followed"
        assert warning["param"].split(".")[0] == name
        assert "properties.a.uniqueItems" in warning["message"]
        assert answer.headers["x-rose-warning"] == warning["message"]
