"""The wheel holds our packages alone, and disturbs nobody's modules.

`--wheel FILE` tests that one, as `make dist` does; otherwise one is built, without the library.
"""

import os
import re
import signal
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.conftest import needs_redis_server
from tests.deploy.files import ROOT
from tests.support.wheel import install, new_environment

PACKAGES = {
    "rose": ROOT / "rose",
    "rose_cli": ROOT / "cli" / "rose_cli",
    "rose_gateway": ROOT / "gateway" / "rose_gateway",
    "rose_producer": ROOT / "producer" / "rose_producer",
    "rose_worker": ROOT / "worker" / "rose_worker",
    "roseinfer": ROOT / "roseinfer",
}
LIBRARY = "roseinfer/_native.abi3.so"
WEB_SERVER = {"aiohttp", "fastapi", "httptools", "starlette", "uvicorn", "uvloop"}
ENGINE = {"llguidance", "tokenizers", "torch", "transformers"}

THEIRS = ("cli", "demo", "errors", "gateway", "producer", "protocol", "worker")
SERVICE = f"""
import sys
import {", ".join(THEIRS)}
from rose_producer import Client

print(*(module.OWNER for module in ({", ".join(THEIRS)})))
with Client(redis_url=sys.argv[1]) as client:
    print(len(client.submit("Once upon a time", max_new_tokens=5).result(90).token_ids))
"""


def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_its_top_level_names_are_ours(wheel: Path) -> None:
    found = {name.partition("/")[0] for name in names(wheel)}
    (metadata,) = (name for name in found if re.fullmatch(r"roseinfer-[\d.]+\.dist-info", name))
    assert found == {*PACKAGES, metadata}


def test_it_holds_the_packages_whole(wheel: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".so", ".pyc"}
    }
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert found - {LIBRARY} == expected


def required(wheel: Path, extra: str | None = None) -> set[str]:
    """What an installation asks for: of the base alone, or of an extra beside it."""
    (metadata,) = (name for name in names(wheel) if name.endswith(".dist-info/METADATA"))
    with ZipFile(wheel) as archive:
        lines = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    mark = "extra ==" if extra is None else f'extra == "{extra}"'
    return {re.split(r"[^\w-]", line)[0] for line in lines if (mark in line) == (extra is not None)}


def test_the_base_install_needs_neither_torch_nor_a_web_server(wheel: Path) -> None:
    assert "redis" in required(wheel)
    assert not required(wheel) & (WEB_SERVER | ENGINE)


def test_the_gateway_needs_a_web_server_and_no_torch(wheel: Path) -> None:
    assert {"fastapi", "uvicorn"} <= required(wheel, "gateway")
    assert not required(wheel, "gateway") & ENGINE
    assert required(wheel, "worker") & WEB_SERVER == {"uvloop"}


def test_without_the_web_server_every_command_is_there_and_the_gateway_says_what_it_needs(
    wheel: Path, tmp_path: Path
) -> None:
    # given: an interpreter that finds no web server, as after a base install
    new_environment(tmp_path / "venv")
    install(wheel, tmp_path / "venv")
    hidden = f"import sys; sys.modules.update(dict.fromkeys({sorted(WEB_SERVER)!r}))"
    run = f"{hidden}; sys.argv[0] = 'rose'; from rose_cli.entry import main; main()"

    def rose(*words: str) -> subprocess.CompletedProcess[str]:
        said = [tmp_path / "venv" / "bin" / "python", "-c", run, *words]
        return subprocess.run(said, capture_output=True, text=True, cwd="/")

    # then
    helped, refused = rose("--help"), rose("gateway")
    assert helped.returncode == 0, helped.stderr
    assert "gateway" in helped.stdout
    assert refused.returncode == 2
    # and what it says to install can be installed
    (requirement,) = re.findall(r"pip install '(.*)'$", refused.stderr, re.MULTILINE)
    assert "[gateway]" in requirement
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", requirement]
    subprocess.run(pip, check=True)


def test_rose_has_the_version_of_the_wheel(wheel: Path, programs: Path) -> None:
    shown = subprocess.run([programs / "rose", "--version"], capture_output=True, text=True)
    assert shown.stdout.strip() == wheel.name.split("-")[1]


def test_a_released_wheel_has_the_compiled_decoder(
    wheel: Path, programs: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--wheel") is None:
        pytest.skip("needs a released wheel: --wheel FILE")
    # when
    code = (
        "from roseinfer import _openmp, native; "
        "print(native.available(), *_openmp.mapped_runtimes())"
    )
    words = [programs / "python", "-c", code]
    shown = subprocess.run(words, cwd="/", capture_output=True, text=True, check=True)
    # then: it uses the OpenMP runtime of torch, the only one of the process
    assert LIBRARY in names(wheel)
    available, runtime = shown.stdout.split()
    assert available == "True"
    assert "/torch" in runtime


@needs_redis_server
def test_it_installs_beside_a_service_with_modules_of_the_same_names_as_its_folders(
    wheel: Path, tmp_path: Path, own_redis: EmbeddedBroker
) -> None:
    # given: an environment that has such modules of its own
    site = new_environment(tmp_path / "venv")
    for name in THEIRS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text('OWNER = "theirs"\n')
    # when: the wheel is installed, a worker starts, and the service submits a job
    install(wheel, tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    options = ["--redis-url", own_redis.url, "--http-port", "0"]
    log = tmp_path / "worker.log"
    # The decoder that is compiled already: this is not about how long that takes.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [programs / "rose", "worker", *options],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": cache},
            stdout=output,
            stderr=output,
        )
        try:
            asked = [programs / "python", "-c", SERVICE, own_redis.url]
            service = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
            worker.send_signal(signal.SIGTERM)
            stopped = worker.wait(30)
        finally:
            worker.kill()
            worker.wait()
    # then
    assert service.returncode == 0, service.stderr + log.read_text()
    assert service.stdout.split() == ["theirs"] * len(THEIRS) + ["5"]
    assert stopped == 0, log.read_text()
