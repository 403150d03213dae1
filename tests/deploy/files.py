"""docker-compose.yml and the Dockerfile, as far as they say what runs and how."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@cache
def services() -> dict[str, Any]:
    """With each variable at its default, as where nothing is set."""
    text = _VARIABLE.sub(lambda found: found[2], (ROOT / "docker-compose.yml").read_text())
    found: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))["services"]
    for service in found.values():
        given = service.get("environment", {})
        given |= {name: "" for name, value in given.items() if value is None}
    return found


@cache
def image(target: str = "worker") -> dict[str, Any]:
    """ENV, HEALTHCHECK, ENTRYPOINT and CMD of an image that runs; `init` is what ENTRYPOINT has
    before the program."""
    stage = _stage(target)
    init, entrypoint = _divided(json.loads(_line(stage, "ENTRYPOINT").partition(" ")[2]))
    variables = " ".join(re.findall(r"^ENV (.*)$", stage, re.MULTILINE))
    return {
        "env": dict(re.findall(r"([A-Z_]+)=(\S+)", variables)),
        "health": json.loads(_line(stage, "HEALTHCHECK").partition(" CMD ")[2]),
        "init": init,
        "entrypoint": entrypoint,
        "cmd": json.loads(re.findall(r"^CMD (.*)$", stage, re.MULTILINE)[-1]),
    }


def _stage(name: str) -> str:
    """Its instructions and those of the stages below it, one a line."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    pattern = rf"^FROM (\S+) AS {name}\n(.*?)(?=^FROM |\Z)"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    below = _stage(found[1]) if found[1].isalnum() else ""
    return below + found[2]


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    end = words.index("--")
    return words[:end], words[end + 1 :]


def _line(stage: str, instruction: str) -> str:
    found = re.search(rf"^{instruction} .*$", stage, re.MULTILINE)
    assert found is not None, instruction
    return found[0]


def build_context() -> list[str]:
    """The files and folders of the project that an image is built of."""
    lines = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    return [line[1:] for line in lines if line.startswith("!")]


def seconds(duration: str) -> float:
    """`1m30s` in seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([smh])", duration))
