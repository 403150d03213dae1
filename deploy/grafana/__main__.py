"""Write the dashboards as JSON, or with --check see whether they are as they would be written.

    python -m deploy.grafana [--check]

The check fails too when an expression, of a panel or of a rule, names a metric that neither the
worker nor the gateway exports.
"""

import argparse
import json
import sys
from pathlib import Path

from deploy.expressions import unknown
from deploy.grafana.dashboards import DASHBOARDS
from rose_gateway.metrics import Metrics as GatewayMetrics
from rose_worker.engine import ModelInfo
from rose_worker.metrics import Metrics

FOLDER = Path(__file__).parent / "dashboards"


def files() -> dict[Path, str]:
    """What the folder has to hold."""
    return {
        FOLDER / f"{board.name}.json": json.dumps(board.to_json(), indent=1) + "\n"
        for board in DASHBOARDS
    }


def problems(expected: dict[Path, str]) -> list[str]:
    present = set(FOLDER.glob("*.json"))
    stale = [
        path for path, text in expected.items() if path not in present or path.read_text() != text
    ]
    stale += present - expected.keys()
    stale_lines = [
        f"{path}: not as written by `python -m deploy.grafana`" for path in sorted(stale)
    ]
    metrics = Metrics(ModelInfo("any", 1, None, "cpu", "float32"), capacity=1)
    return stale_lines + unknown(metrics.registry, GatewayMetrics().registry)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    expected = files()
    if not parser.parse_args().check:
        FOLDER.mkdir(exist_ok=True)
        for path, text in expected.items():
            path.write_text(text)
    wrong = problems(expected)
    for problem in wrong:
        sys.stderr.write(f"{problem}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
