"""The gateway as a whole: it starts, it answers, and its errors have OpenAI's shape."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx
import pytest
import zstandard

from rose_cli.local.broker import EmbeddedBroker
from rose_gateway.app import create_app
from rose_gateway.settings import GatewaySettings
from tests.support.gateway import Deployment


def test_it_is_healthy_and_ready(deployment: Deployment) -> None:
    healthy = httpx.get(f"{deployment.origin}/healthz", timeout=90)
    assert (healthy.status_code, healthy.text) == (200, "ok\n")
    ready = httpx.get(f"{deployment.origin}/readyz", timeout=90)
    assert ready.status_code == 200
    assert ready.text == f"ok\nqueue {deployment.queue}: model null, 0 running, 0 waiting\n"


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/readyz", "/v1/models"])
def test_who_only_wants_to_know_whether_it_is_there_may_ask_for_the_head(
    deployment: Deployment, path: str
) -> None:
    answer = httpx.head(deployment.origin + path, timeout=90)
    assert (answer.status_code, answer.content) == (200, b"")
    assert (
        answer.headers["content-type"]
        == httpx.get(deployment.origin + path).headers["content-type"]
    )


def test_without_redis_it_is_healthy_and_not_ready_and_says_when_to_come_again(
    own_broker: EmbeddedBroker, start_own_deployment: Callable[..., Deployment]
) -> None:
    # given
    deployment = start_own_deployment(redis_retries=0)
    # when
    own_broker.stop()
    # then
    assert httpx.get(f"{deployment.origin}/healthz", timeout=90).status_code == 200
    assert httpx.get(f"{deployment.origin}/readyz", timeout=90).status_code == 503
    answer = deployment.get("/responses/resp_0-x")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "broker_unavailable"
    assert answer.headers["x-should-retry"] == "true"
    assert int(answer.headers["retry-after"]) >= 1


def test_every_answer_names_its_request(deployment: Deployment) -> None:
    own = httpx.get(f"{deployment.origin}/healthz", timeout=90).headers["x-request-id"]
    assert own.startswith("req_")
    given = httpx.get(
        f"{deployment.origin}/no", headers={"x-request-id": "from-a.proxy_1"}, timeout=90
    )
    assert given.headers["x-request-id"] == "from-a.proxy_1"
    odd = httpx.get(f"{deployment.origin}/no", headers={"x-request-id": "a b"}, timeout=90)
    assert odd.headers["x-request-id"].startswith("req_")


def test_metrics_count_requests_by_route_and_name_no_value_of_a_request(
    deployment: Deployment,
) -> None:
    # when
    for path in ("/v1/responses/resp_one", "/v1/responses/resp_two", "/three"):
        assert httpx.get(deployment.origin + path, timeout=90).status_code == 404
    # then
    page = httpx.get(f"{deployment.origin}/metrics", timeout=90).text
    counted = 'rose_gateway_requests_total{method="GET",route="/v1/responses/{response_id}"'
    assert f'{counted},status="404"}} 2.0' in page
    assert not {"resp_one", "resp_two", "three"} & set(page.split("/"))
    assert "resp_" not in page


async def test_the_openapi_document_is_made_before_the_first_request(
    any_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Making it takes the event loop a tenth of a second, and a wrong method asks for it."""
    app = create_app(GatewaySettings(redis_url=any_broker.url, storage=str(tmp_path)))
    async with app.router.lifespan_context(app):
        assert app.openapi_schema is not None


def test_the_openapi_document_is_there(deployment: Deployment) -> None:
    answer = httpx.get(deployment.origin + "/openapi.json", timeout=90)
    assert answer.status_code == 200
    document = answer.json()
    assert "/v1/responses" in document["paths"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"400", "404", "429", "503"} <= operation["responses"].keys()
    assert "ValidationError" not in answer.text


def test_a_path_that_is_not_there_is_refused_in_openais_shape(deployment: Deployment) -> None:
    answer = httpx.get(deployment.origin + "/v1/nothing?secret=1", timeout=90)
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "message": "no such path: GET /v1/nothing",
            "type": "invalid_request_error",
            "param": None,
            "code": "unknown_url",
        }
    }
    assert answer.headers["x-should-retry"] == "false"


def test_a_query_is_refused_as_a_body_is(deployment: Deployment) -> None:
    query = {"stream": "true", "starting_after": "x"}
    answer = deployment.get("/responses/resp_0", params=query)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("starting_after", "invalid_value")


def test_a_method_that_is_not_there_is_refused_in_openais_shape(deployment: Deployment) -> None:
    answer = httpx.delete(deployment.origin + "/healthz", timeout=90)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("method", "path", "use"),
    [
        ("PUT", "/v1/chat/completions", "use GET, POST /v1/chat/completions"),
        ("PUT", "/v1/responses/resp_1", "use DELETE, GET /v1/responses/resp_1"),
        ("DELETE", "/v1/models", "use GET /v1/models"),
        ("GET", "/v1/responses/compact", "POST /v1/responses"),
        ("GET", "/v1/responses/input_tokens", "use POST /v1/responses/input_tokens"),
        ("POST", "/v1/conversations", "previous_response_id"),
        ("GET", "/v1/conversations/conv_1/items", "previous_response_id"),
        ("POST", "/v1/nothing", "no such path"),
        ("POST", "/chat/completions", "use /v1/chat/completions"),
        ("GET", "/models", "use /v1/models"),
        ("POST", "/v1/chat/completions/", "use /v1/chat/completions:"),
        ("POST", "/v1//responses", "use /v1/responses"),
        ("POST", "/v1/v1/messages", "use /v1/messages"),
        ("POST", "/v1/tokenize", "use /tokenize"),
        ("PATCH", "/v1/files/file-1", "use DELETE, GET /v1/files/file-1"),
    ],
)
def test_below_v1_what_is_not_there_says_what_is(
    deployment: Deployment, method: str, path: str, use: str
) -> None:
    answer = httpx.request(method, deployment.origin + path, timeout=90)

    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert use in error["message"]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_runs_the_scripts_of_others(deployment: Deployment, path: str) -> None:
    answer = httpx.get(deployment.origin + path, timeout=90)

    assert answer.status_code == 404
    assert "<script" not in answer.text


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress),
        ("GZip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
        ("zstd", zstandard.compress),
        ("identity", bytes),
    ],
)
def test_a_compressed_body_is_read(
    deployment: Deployment, encoding: str, packed: Callable[[bytes], bytes]
) -> None:
    # given
    body = json.dumps({"model": "null", "prompt": "hello" * 9000, "max_tokens": 2}).encode()

    # when
    answer = deployment.post(
        "/completions", content=packed(body), headers={"content-encoding": encoding}
    )

    # then
    assert answer.json()["choices"][0]["text"] == "104 101 "


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("br", b"{}", 415, "unsupported_encoding"),
        ("gzip, zstd", b"{}", 415, "unsupported_encoding"),
        ("gzip", b"{}", 400, "invalid_body"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-3], 400, "invalid_body"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more", 400, "invalid_body"),
        ("zstd", b"{}", 400, "invalid_body"),
        ("zstd", zstandard.compress(b'{"model": "null"}')[:12], 400, "invalid_value"),
    ],
)
def test_what_is_no_such_body_is_refused(
    deployment: Deployment, encoding: str, body: bytes, status: int, code: str
) -> None:
    answer = deployment.post("/completions", content=body, headers={"content-encoding": encoding})

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_few_bytes_that_stand_for_gigabytes_are_unpacked_no_further_than_the_limit(
    deployment: Deployment, encoding: str
) -> None:
    # given: 4 GB of zeros
    piece = bytes(1 << 24)
    one = gzip.compress(piece, 9) if encoding == "gzip" else zstandard.compress(piece, 19)
    bomb = one * 256
    before = peak_memory(deployment)

    # when
    answers = [
        deployment.post("/completions", content=bomb, headers={"content-encoding": encoding})
        for _ in range(3)
    ]

    # then
    assert [answer.status_code for answer in answers] == [413] * 3
    assert {answer.json()["error"]["code"] for answer in answers} == {"body_too_large"}
    assert peak_memory(deployment) - before < 64 * 1024


def peak_memory(deployment: Deployment) -> int:
    """Of the gateway, in kB."""
    status = Path(f"/proc/{deployment.gateway.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def test_a_file_comes_as_it_is(deployment: Deployment) -> None:
    answer = deployment.post(
        "/files", content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}
    )

    assert answer.status_code == 415
    assert "content-encoding 'gzip'" in answer.json()["error"]["message"]
