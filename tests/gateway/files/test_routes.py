"""/v1/files, over HTTP."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess
from tests.support.api_keys import bearer
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.gateway import gateway_metrics, running_gateway

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'
BATCH = {"purpose": "batch"}
MAX_BYTES = 100_000_000
#: What comes before the content of a file, with the boundary `b`.
FORM_HEAD = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    b'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def secrets(broker: EmbeddedBroker) -> list[str]:
    """Of two API keys."""
    made = [
        run_rose("keys", "create", name, "--json", "--redis-url", broker.url) for name in ("a", "b")
    ]
    return [json.loads(one.stdout)["secret"] for one in made]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedBroker, secrets: list[str], storage: Path) -> Iterator[GatewayProcess]:
    """It keeps files in `storage`."""
    options: dict[str, Any] = {
        "storage": str(storage),
        "max_file_bytes": MAX_BYTES,
        "write_timeout_s": 2,
    }
    with running_gateway(broker.url, "files", **options) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: GatewayProcess, secrets: list[str]) -> Iterator[httpx.Client]:
    """Of the first key. It deletes its files in the end."""
    with httpx.Client(base_url=gateway.url, headers=bearer(secrets[0]), timeout=90) as client:
        yield client
        for file in client.get("/files").json()["data"]:
            client.delete(f"/files/{file['id']}")


@pytest.fixture
def other(gateway: GatewayProcess, secrets: list[str]) -> Iterator[httpx.Client]:
    """Of the second key."""
    with httpx.Client(base_url=gateway.url, headers=bearer(secrets[1]), timeout=90) as client:
        yield client


def upload(client: httpx.Client, name: str = "in.jsonl", data: bytes = LINES, **fields: Any) -> Any:
    answer = client.post("/files", files={"file": (name, data)}, data={**BATCH, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def upload_head(secret: str, length: int) -> bytes:
    return (
        f"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n"
        f"authorization: Bearer {secret}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
    ).encode()


def assert_not_found(client: httpx.Client, file_id: str) -> None:
    url = f"/files/{file_id}"
    for answer in (client.get(url), client.get(f"{url}/content"), client.delete(url)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def stored(storage: Path) -> list[str]:
    return sorted(path.name for path in storage.rglob("*") if path.is_file())


def test_a_file_is_uploaded_shown_and_downloaded(client: httpx.Client, storage: Path) -> None:
    file = upload(client)

    assert re.fullmatch(r"file-[0-9a-f]{32}", file["id"])
    assert file == {
        "id": file["id"],
        "object": "file",
        "bytes": len(LINES),
        "created_at": file["created_at"],
        "expires_at": file["created_at"] + 30 * 86_400,
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert client.get(f"/files/{file['id']}").json() == file
    content = client.get(f"/files/{file['id']}/content")
    assert content.content == LINES
    assert content.headers["content-length"] == str(len(LINES))
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["x-content-type-options"] == "nosniff"
    assert content.headers["content-disposition"].startswith("attachment")
    assert stored(storage) == [file["id"]]


def test_a_deleted_file_is_gone_with_its_content(client: httpx.Client, storage: Path) -> None:
    file = upload(client)

    deleted = client.delete(f"/files/{file['id']}")

    assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert_not_found(client, file["id"])
    assert stored(storage) == []


def test_another_keys_file_is_not_found(client: httpx.Client, other: httpx.Client) -> None:
    file = upload(client)

    assert_not_found(other, file["id"])
    assert other.get("/files").json()["data"] == []
    assert client.get(f"/files/{file['id']}/content").content == LINES


def test_files_are_listed_page_by_page(client: httpx.Client) -> None:
    files = [upload(client, name=f"{number}.jsonl") for number in range(4)]
    kept = upload(client, purpose="user_data")
    ids = [file["id"] for file in files]

    def page(**query: Any) -> tuple[list[str], bool]:
        said = client.get("/files", params=query).json()
        found = [file["id"] for file in said["data"]]
        assert (said["first_id"], said["last_id"]) == (found[0], found[-1])
        return found, said["has_more"]

    assert page() == ([kept["id"], *reversed(ids)], False)
    assert page(purpose="batch", order="asc") == (ids, False)
    assert page(purpose="user_data") == ([kept["id"]], False)
    assert kept["expires_at"] is None
    assert page(order="asc", limit=2) == (ids[:2], True)
    assert page(limit=2, after=ids[2]) == ([ids[1], ids[0]], False)
    client.delete(f"/files/{ids[1]}")
    assert page(order="asc", limit=2, after=ids[1]) == (ids[2:], True)


def test_an_expiry_is_what_was_asked_for(client: httpx.Client) -> None:
    ask = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(client, **ask)

    assert file["expires_at"] == file["created_at"] + 3600


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({}, "purpose", "missing"),
        ({"purpose": "fine-tune"}, "purpose", "no fine-tuning"),
        ({"purpose": "batch_output"}, "purpose", "batch"),
        ({**BATCH, "colour": "red"}, "colour", "no such parameter"),
        ({**BATCH, "expires_after[seconds]": "3600"}, "expires_after[anchor]", "missing"),
        ({**BATCH, "expires_after[anchor]": "created_at"}, "expires_after[seconds]", "missing"),
        *(
            (
                {**BATCH, "expires_after[anchor]": anchor, "expires_after[seconds]": seconds},
                f"expires_after[{wrong}]",
                "",
            )
            for anchor, seconds, wrong in (
                ("created_at", "3599", "seconds"),
                ("created_at", "2592001", "seconds"),
                ("created_at", "soon", "seconds"),
                ("last_active_at", "3600", "anchor"),
            )
        ),
    ],
)
def test_a_wrong_upload_is_refused_and_leaves_nothing(
    client: httpx.Client, storage: Path, fields: dict[str, str], param: str, says: str
) -> None:
    answer = client.post("/files", files={"file": ("in.jsonl", LINES)}, data=fields)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]
    assert client.get("/files").json()["data"] == []
    assert stored(storage) == []


@pytest.mark.parametrize(
    "body",
    [
        {"files": {"file": ("in.jsonl", b"")}, "data": BATCH},
        {"json": {"file": "in.jsonl", **BATCH}},
    ],
    ids=["empty", "JSON"],
)
def test_what_has_no_content_is_no_upload(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post("/files", **body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_a_name_that_is_a_path_or_a_header_is_neither(client: httpx.Client, storage: Path) -> None:
    file = upload(client, name="../../../tmp/a b\x1b\r\nx: y\u2603.jsonl")

    assert file["filename"].endswith("\u2603.jsonl")
    assert not set(file["filename"]) & set("/\\\r\n\x1b")
    assert stored(storage) == [file["id"]]
    shown = client.get(f"/files/{file['id']}/content").headers["content-disposition"]
    assert "%E2%98%83.jsonl" in shown


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 10_001}, {"after": "file-x"}, {"order": "up"}]
)
def test_a_wrong_page_is_refused(client: httpx.Client, query: dict[str, Any]) -> None:
    answer = client.get("/files", params=query)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(query))


def test_a_gigabyte_is_refused_before_it_is_sent(
    gateway: GatewayProcess, secrets: list[str], storage: Path
) -> None:
    with socket.create_connection(("127.0.0.1", gateway.http_port), timeout=90) as raw:
        raw.sendall(upload_head(secrets[0], 1_000_000_000))
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))  # until the gateway closes

    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert stored(storage) == []


def test_a_file_that_does_not_say_how_long_it_is_is_counted(
    client: httpx.Client, storage: Path
) -> None:
    def endless() -> Iterator[bytes]:
        yield FORM_HEAD
        for _ in range(2 * MAX_BYTES // 1_000_000):
            yield b"x" * 1_000_000

    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = client.post("/files", content=endless(), headers=headers)

    assert answer.status_code == 413, answer.text
    assert stored(storage) == []


def test_without_a_key_nothing_is_read(gateway: GatewayProcess, storage: Path) -> None:
    answer = httpx.post(
        f"{gateway.url}/files", files={"file": ("f", LINES)}, data=BATCH, timeout=90
    )

    assert answer.status_code == 401
    assert stored(storage) == []


def test_an_upload_that_is_cut_off_leaves_nothing(
    gateway: GatewayProcess, secrets: list[str], storage: Path, client: httpx.Client
) -> None:
    # given: half of an upload
    with socket.create_connection(("127.0.0.1", gateway.http_port), timeout=90) as raw:
        raw.sendall(upload_head(secrets[0], 9_000_000) + FORM_HEAD + b"x" * 4_000_000)
        wait_until(lambda: stored(storage) != [])
        # when: the client goes away
    # then
    wait_until(lambda: stored(storage) == [])
    assert client.get("/files").json()["data"] == []


def peak_bytes(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux' /proc")
def test_memory_does_not_grow_with_the_file(client: httpx.Client, gateway: GatewayProcess) -> None:
    # given: a small file has gone both ways
    small = upload(client)
    client.get(f"/files/{small['id']}/content")
    before = peak_bytes(gateway.pid)
    # when: one of 90 MB does
    line = b'{"custom_id": "a", "body": {"prompt": "' + b"x" * 1000 + b'"}}\n'
    data = line * (90_000_000 // len(line))
    large = upload(client, data=data)
    with client.stream("GET", f"/files/{large['id']}/content") as answer:
        size = sum(map(len, answer.iter_bytes()))
    # then
    assert size == large["bytes"] == len(data)
    assert peak_bytes(gateway.pid) - before < 30_000_000


def test_a_reader_that_takes_nothing_is_hung_up_on(
    client: httpx.Client, gateway: GatewayProcess, secrets: list[str]
) -> None:
    # given: more than lies in the buffers of the sockets
    file = upload(client, data=b"x" * 40_000_000)
    path = f"/v1/files/{file['id']}/content"
    with socket.create_connection(("127.0.0.1", gateway.http_port), timeout=90) as raw:
        # when: somebody asks for it and reads nothing
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\n"
            f"authorization: Bearer {secrets[0]}\r\n\r\n".encode()
        )
        # then
        wait_until(lambda: "broken off" in gateway.log)
    assert client.get(f"/files/{file['id']}").status_code == 200


def test_content_that_the_storage_has_lost_is_told(client: httpx.Client, storage: Path) -> None:
    file = upload(client)
    (storage / "files" / file["id"]).unlink()

    answer = client.get(f"/files/{file['id']}/content")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_gone")


def test_nothing_of_a_file_is_logged(client: httpx.Client, gateway: GatewayProcess) -> None:
    file = upload(client, name="secret-name.jsonl", data=b"secret-content")
    client.get(f"/files/{file['id']}/content")

    assert "/v1/files" in gateway.log
    assert "secret-" not in gateway.log
    assert gateway_metrics(gateway)["rose_gateway_received_bytes_total"] > 0
