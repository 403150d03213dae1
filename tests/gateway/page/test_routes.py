"""The page's files: what they are, and what they may do in a browser."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx
import pytest

from rose_gateway.app import create_app
from rose_gateway.page import routes
from rose_gateway.settings import GatewaySettings
from tests.support.api_keys import create_key
from tests.support.gateway import Deployment

STATIC = sorted(routes._contents())
"""names"""
LIBRARIES = Path(routes.__file__).parent / "static" / "libraries"


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in STATIC)])
def test_each_file_is_what_it_says_and_bound_to_this_server(
    deployment: Deployment, path: str
) -> None:
    answer = httpx.get(deployment.origin + path, timeout=90)

    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg+xml",
        "txt": "text/plain",
    }
    ending = path.rpartition(".")[2] if "." in path else "html"
    assert answer.headers["content-type"].startswith(kind[ending])


def test_what_the_browser_has_is_not_sent_again(deployment: Deployment) -> None:
    first = httpx.get(deployment.origin + "/", timeout=90)

    again = httpx.get(
        deployment.origin + "/", headers={"if-none-match": first.headers["etag"]}, timeout=90
    )

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "..%2Froutes.py",
        "../routes.py",
        "libraries/..%2Fpage.js",
        "libraries",
        "__init__.py",
        "routes.py",
        "",
    ],
)
def test_no_other_file_is_served(deployment: Deployment, name: str) -> None:
    assert httpx.get(f"{deployment.origin}/page/{name}", timeout=90).status_code == 404


def test_the_files_name_no_other_server() -> None:
    texts = {
        name: content.decode()
        for name, (content, _) in routes._contents().items()
        if not name.startswith("libraries/")
    }
    links = {
        (name, link)
        for name, text in texts.items()
        for link in re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)
    }

    assert links == {("icon.svg", "http://www.w3.org")}
    assert not re.search(r"<script(?![^>]*src)|style=|\son\w+=", texts["index.html"])


def test_the_libraries_are_what_their_authors_have_published() -> None:
    sums = (LIBRARIES / "SHA256SUMS.txt").read_text()
    listed = {name: sum_ for sum_, name in (line.split() for line in sums.splitlines())}

    found = {
        path.relative_to(LIBRARIES).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in LIBRARIES.rglob("*.js")
    }

    assert found == listed
    for name in ("marked", "highlight"):
        assert "Copyright" in (LIBRARIES / f"{name}.LICENSE.txt").read_text()


def test_the_page_needs_no_key_and_shows_nothing_without_one(
    start_own_deployment: Callable[..., Deployment],
) -> None:
    deployment = start_own_deployment()
    create_key(deployment)

    assert httpx.get(deployment.origin + "/", timeout=90).status_code == 200


@pytest.mark.parametrize(("page", "status"), [(True, 200), (False, 404)])
async def test_it_can_be_left_out(page: bool, status: int) -> None:
    app = create_app(GatewaySettings(page=page))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as client:
        assert (await client.get("/")).status_code == status
        assert (await client.get("/page/page.js")).status_code == status
