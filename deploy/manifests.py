"""Write the plain manifests of deploy/kubernetes from the Helm chart, or with --check compare.

    python -m deploy.manifests [--check]

Needs helm. The ConfigMaps are no part of them: kustomize generates those from worker.env and
gateway.env.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "kubernetes"
CHART = Path(__file__).parent / "helm"
PLAIN_VALUES = CHART / "plain.yaml"
RENDERED = ("worker", "gateway", "ingress", "network", "scaling", "monitoring")

#: Helm's own lines, and the checksum by which a change of settings starts new pods; kustomize
#: gives the ConfigMaps new names instead.
_HELM_ONLY = re.compile(r"^# Source: .*\n|^ +annotations:\n +checksum/.*\n", re.MULTILINE)


def find_program(name: str) -> str | None:
    """helm or kubectl: in this environment (`make .venv/bin/helm`), or on PATH."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def render(*options: str, release: str = "rose", namespace: str = "roseinfer") -> str:
    """The chart's manifests with these options of `helm template`.

    Raises:
        FileNotFoundError: there is no helm.
        ValueError: Helm refuses; its message.
    """
    helm = find_program("helm")
    if helm is None:
        raise FileNotFoundError("helm is not installed: make .venv/bin/helm")
    words = [helm, "template", release, str(CHART), "--namespace", namespace, *options]
    ended = subprocess.run(words, capture_output=True, text=True)  # noqa: S603 - helm, found above
    if ended.returncode:
        raise ValueError(ended.stderr)
    return ended.stdout


def plain_manifests() -> dict[Path, str]:
    """What the folder has to hold."""
    return {FOLDER / f"{name}.yaml": _plain(name) for name in RENDERED}


def _plain(name: str) -> str:
    text = render("--values", str(PLAIN_VALUES), "--show-only", f"templates/{name}.yaml")
    return _HELM_ONLY.sub("", text).removeprefix("---\n").rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    check = parser.parse_args().check
    stale = {path: text for path, text in plain_manifests().items() if path.read_text() != text}
    for path, text in stale.items():
        if check:
            sys.stderr.write(f"{path}: not as written by `python -m deploy.manifests`\n")
        else:
            path.write_text(text)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
