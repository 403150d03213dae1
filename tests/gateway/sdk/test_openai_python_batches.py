"""Batches through openai-python, unmodified: upload, create, wait, read."""

import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.gateway.sdk.deployments import ECHO, SLOW
from tests.support.api_keys import create_key
from tests.support.gateway import Deployment
from tests.support.time_limit import TimeLimit

_LIMIT_S = 120
_ENDED = ("completed", "failed", "expired", "cancelled")

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 2}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": HI,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
}


def line(custom_id: str, url: str, **body: Any) -> str:
    asked = {"model": ECHO, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": asked})


def created(client: OpenAI, lines: list[str], url: Any, **options: Any) -> Batch:
    content = "".join(one + "\n" for one in lines).encode()
    source = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=source.id, endpoint=url, completion_window="24h", **options
    )


def ended(client: OpenAI, batch: Batch) -> Batch:
    limit = TimeLimit(_LIMIT_S)
    while batch.status not in _ENDED:
        assert not limit.passed, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def said(client: OpenAI, file_id: str | None) -> list[Any]:
    assert file_id is not None
    return [json.loads(one) for one in client.files.content(file_id).iter_lines()]


@pytest.mark.parametrize("url", BODIES)
def test_every_line_of_a_batch_is_answered(client: OpenAI, url: str) -> None:
    # given
    lines = [line(f"line-{n}", url, **BODIES[url]) for n in range(3)]
    # when
    batch = created(client, lines, url, metadata={"night": "7"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", url, {"night": "7"})
    assert batch.expires_at == batch.created_at + 86_400
    batch = ended(client, batch)
    # then
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 3, 0)
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert list(times) == sorted(time or 0 for time in times)
    output = said(client, batch.output_file_id)
    assert [one["custom_id"] for one in output] == ["line-0", "line-1", "line-2"]
    for one in output:
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
        usage = one["response"]["body"]["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 2
    # and
    file = client.files.retrieve(batch.output_file_id or "")
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == len(client.files.content(file.id).content)


def test_a_batch_is_cancelled_and_says_so_again(client: OpenAI) -> None:
    # given
    url = "/v1/completions"
    long: Any = {"prompt": "Hi", "max_tokens": 5000, "model": SLOW}
    batch = created(client, [line(f"line-{n}", url, **long) for n in range(3)], url)
    # when
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    # then
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert batch.cancelling_at is not None
    errors = said(client, batch.error_file_id)
    assert {one["error"]["code"] for one in errors} == {"batch_cancelled"}
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_batch_that_cannot_be_run_fails_and_says_why(client: OpenAI) -> None:
    url = "/v1/completions"
    twice = [line("same", url, prompt="Hi", max_tokens=1)] * 2
    batch = ended(client, created(client, twice, url))
    assert batch.status == "failed"
    assert batch.errors is not None
    (problem,) = batch.errors.data or ()
    assert (problem.code, problem.line, problem.param) == ("duplicate_custom_id", 2, "custom_id")
    with pytest.raises(openai.ConflictError, match="failed already"):
        client.batches.cancel(batch.id)


def test_batches_are_listed_page_by_page(client: OpenAI) -> None:
    # given
    url = "/v1/completions"
    batches = [created(client, [line("a", url, prompt="Hi", max_tokens=1)], url) for _ in range(3)]
    # an id begins with its millisecond; two of the same one are in any order
    newest_first = sorted((batch.id for batch in batches), reverse=True)
    # then: the SDK asks for the next page by itself
    listed = []
    for batch in client.batches.list(limit=2):
        listed.append(batch.id)
        if len(listed) == 3:
            break
    assert listed == newest_first
    for batch in batches:
        ended(client, batch)


@pytest.mark.parametrize(
    ("change", "param", "error"),
    [
        ({"completion_window": "1s"}, "completion_window", openai.BadRequestError),
        ({"completion_window": "8d"}, "completion_window", openai.BadRequestError),
        ({"endpoint": "/v1/images/generations"}, "endpoint", openai.BadRequestError),
        ({"input_file_id": "file-none"}, "input_file_id", openai.NotFoundError),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            "output_expires_after.seconds",
            openai.BadRequestError,
        ),
    ],
)
def test_a_wrong_batch_is_refused(
    client: OpenAI, change: dict[str, Any], param: str, error: type[openai.APIStatusError]
) -> None:
    source = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    asked = {"input_file_id": source.id, "endpoint": "/v1/responses", "completion_window": "24h"}
    with pytest.raises(error) as refused:
        client.batches.create(**{**asked, **change})
    assert refused.value.param == param


def test_a_file_for_another_purpose_is_no_batch(client: OpenAI) -> None:
    source = client.files.create(file=("in.jsonl", b"{}\n"), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="user_data"):
        client.batches.create(
            input_file_id=source.id, endpoint="/v1/responses", completion_window="24h"
        )


def test_the_files_of_a_batch_expire_as_it_says(client: OpenAI) -> None:
    url = "/v1/completions"
    batch = created(
        client,
        [line("a", url, prompt="Hi", max_tokens=1)],
        url,
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    file = client.files.retrieve(ended(client, batch).output_file_id or "")
    assert file.expires_at == file.created_at + 3600


def test_another_keys_batches_are_not_found(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    # given
    deployment = start_own_deployment()
    mine, other = (deployment.openai(api_key=create_key(deployment)["secret"]) for _ in range(2))
    with mine, other:
        url = "/v1/completions"
        lines = [line("a", url, model="null", prompt="Hi", max_tokens=1)]
        batch = ended(mine, created(mine, lines, url))
        # then
        for ask in (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.files.content(batch.output_file_id or ""),
            lambda: other.files.delete(batch.output_file_id or ""),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/completions",
                completion_window="24h",
            ),
        ):
            with pytest.raises(openai.NotFoundError):
                ask()
        assert list(other.batches.list()) == []
        assert [one.id for one in mine.batches.list()] == [batch.id]
