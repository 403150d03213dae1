"""Files by openai-python, unmodified."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.sdk.deployments import Deployment, openai_client

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'


@pytest.fixture
def client(deployment: Deployment) -> Iterator[OpenAI]:
    """It deletes its files in the end, page by page."""
    with openai_client(deployment.url) as client:
        yield client
        for file in client.files.list(limit=2):
            client.files.delete(file.id)
        assert list(client.files.list()) == []


def test_a_file_is_uploaded_and_read(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(LINES)

    file = client.files.create(
        file=path, purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )

    assert (file.filename, file.bytes, file.purpose) == ("in.jsonl", len(LINES), "batch")
    assert file.expires_at == file.created_at + 7200
    assert client.files.retrieve(file.id) == file
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert client.files.content(file.id).read() == LINES
    assert client.files.content(file.id).text.splitlines() == LINES.decode().splitlines()


def test_bytes_are_a_file_too(client: OpenAI) -> None:
    file = client.files.create(file=LINES, purpose="user_data")

    assert client.files.content(file.id).read() == LINES
    assert file.expires_at is None


def test_files_are_listed_whatever_is_deleted_meanwhile(client: OpenAI) -> None:
    ids = [
        client.files.create(file=(f"{number}", LINES), purpose="batch").id for number in range(5)
    ]

    found = []
    for file in client.files.list(order="asc", limit=2, purpose="batch"):
        found.append(file.id)
        client.files.delete(file.id)

    assert found == ids
    assert list(client.files.list()) == []


async def test_content_streams(deployment: Deployment, client: OpenAI) -> None:
    data = LINES * 100_000
    async with AsyncOpenAI(base_url=deployment.url, api_key="none") as asking:
        file = await asking.files.create(file=("large.jsonl", data), purpose="batch")
        async with asking.files.with_streaming_response.content(file.id) as answer:
            read = b"".join([chunk async for chunk in answer.iter_bytes()])

    assert read == data
