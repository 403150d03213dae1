"""The demo's streams read again over HTTP, and a curl command with which its user does the same."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from rose_cli.local.services import GatewayProcess

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class HttpCheck:
    url: str
    """the base URL for OpenAI's SDKs"""
    differing: frozenset[int]
    """numbers of the streams whose text differs from what their subscribers saw"""


def text_of(gateway: GatewayProcess, job_id: str) -> str | None:
    """A job's text, as the gateway streams it; None where it gives no good answer."""
    stream = gateway.http(f"/v1/jobs/{job_id}/events", _TIMEOUT_S)
    return None if stream is None else "".join(event.get("text", "") for event in _events(stream))


def _events(stream: str) -> Iterator[dict[str, str]]:
    """The data of each event, where it is JSON."""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def curl_lines(check: HttpCheck, *, keep: bool) -> list[str]:
    """For a terminal of 80 columns."""
    request = {"model": "built-in", "input": "Tell me a story.", "stream": True}
    same = "the same" if not check.differing else "OTHER TEXTS"
    until = "up until Ctrl-C" if keep else "--keep leaves it up"
    return [
        f"{same} over OpenAI's API, {check.url}; {until}:",
        f"  curl -N {check.url}/responses \\",
        f"    -d '{json.dumps(request)}'",
    ]
