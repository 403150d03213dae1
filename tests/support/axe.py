"""axe-core, which finds what keeps people from using a page: fetched from npm, not shipped."""

import hashlib
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.support.node import find_node

_PACKAGE = "axe-core@4.14.1"
_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_MEMBER = "package/axe.min.js"


def violations(page: Browser) -> list[str]:
    """Of all rules, best practices too. Skips the test where npm cannot fetch axe-core."""
    page.script(_source())
    answer: dict[str, Any] = page.driver.execute_async_script(
        "axe.run(document).then(arguments[0], (error) => arguments[0]({ error: String(error) }))"
    )
    assert "error" not in answer, answer
    assert answer["passes"], "axe has looked at nothing"
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
        for one in answer["violations"]
    ]


@cache
def _source() -> str:
    node = find_node()
    with TemporaryDirectory() as folder:
        packed = node.npm("pack", "--silent", "--ignore-scripts", _PACKAGE, cwd=Path(folder))
        if packed.returncode != 0:
            pytest.skip(f"npm cannot fetch {_PACKAGE}: {packed.stderr}")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(_MEMBER)
            assert member is not None
            source = member.read()
    assert hashlib.sha256(source).hexdigest() == _SHA256
    return source.decode()
