"""The images of docker-compose.yml: built, pulled, or stood in for where no registry answers.

A stand-in is Debian, made by debootstrap, with Debian's package of the same program, under the name
that the files use. It shows what our files do; it is not the version that they name.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.compose.docker import DATA, Docker, NoDocker
from tests.compose.pip_sources import PipSources
from tests.deploy.files import DOCKERFILE, ROOT, services

OURS = "roseinfer:cpu"
#: Of the Dockerfile, for the services that are brought up.
_TARGETS = ("cpu", "gateway")

_STAND_INS = Path(__file__).parent / "stand_ins"
_DEBIAN = "rose-stand-in:debian"
#: pip's folders on this machine, while images are built.
_FIRST_PORT = 38500

_PULL_S, _MAKE_S, _BUILD_S = 300, 900, 1800


def base_images() -> dict[str, str]:
    """Those that are not ours and that the tests need, with the stand-in for each."""
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    python, debian = arguments["PYTHON"], arguments["DEBIAN"]
    return {
        f"python:{python}-slim-{debian}": "python",
        f"python:{python}-{debian}": "compiler",
        services()["redis"]["image"]: "redis",
        services()["prometheus"]["image"]: "prometheus",
    }


def make_all(docker: Docker) -> None:
    """Raises: NoDocker: there is neither a registry nor a way to make stand-ins."""
    slim, *_ = bases = base_images()
    lacking = [name for name in bases if not docker.answers("image", "inspect", name)]
    lacking = [name for name in lacking if not docker.answers("pull", name, timeout=_PULL_S)]
    sources = PipSources(_FIRST_PORT)
    for name in lacking:
        _make_stand_in(docker, name, bases[name], slim, sources)
    _build_ours(docker, sources, on_stand_ins=_is_stand_in(docker, slim))


def _build_ours(docker: Docker, sources: PipSources, *, on_stand_ins: bool) -> None:
    with sources.serving():
        for target in _TARGETS:
            words: list[str | Path] = ["build", "--file", DOCKERFILE, "--target", target]
            words += ["--tag", f"roseinfer:{target}"]
            if on_stand_ins:
                # Their pip knows where this machine has torch from.
                words += ["--network", "host", "--build-arg", "TORCH_INDEX="]
            docker(*words, ROOT, timeout=_BUILD_S)


def _is_stand_in(docker: Docker, name: str) -> bool:
    return "rose.stand-in" in docker("image", "inspect", "--format", "{{.Config.Labels}}", name)


def _make_stand_in(docker: Docker, name: str, recipe: str, slim: str, sources: PipSources) -> None:
    if not docker.answers("image", "inspect", _DEBIAN):
        _import_debian(docker)
    with tempfile.TemporaryDirectory() as context:
        Path(context, "pip.conf").write_text(sources.conf)
        Path(context, "authorities.crt").write_bytes(sources.authorities)
        docker(
            *("build", "--network", "host", "--label", "rose.stand-in=yes", "--tag", name),
            *("--build-arg", f"BASE={slim if recipe == 'compiler' else _DEBIAN}"),
            *("--file", _STAND_INS / f"{recipe}.Dockerfile", context),
            timeout=_MAKE_S,
        )


def _import_debian(docker: Docker) -> None:
    if shutil.which("debootstrap") is None:
        raise NoDocker("no registry answers, and there is no debootstrap to make stand-ins with")
    suite = dict(re.findall(r"^ARG (\w+)=(\S+)", DOCKERFILE.read_text(), re.MULTILINE))["DEBIAN"]
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        root = Path(folder, "root")
        subprocess.run(
            ["debootstrap", "--variant=minbase", suite, root],
            check=True,
            timeout=_MAKE_S,
            stdout=subprocess.DEVNULL,
        )
        archive = Path(folder, "root.tar")
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        docker("import", archive, _DEBIAN, timeout=_MAKE_S)
