"""What the workers of these benchmarks serve."""

import json
import shutil
from pathlib import Path

from roseinfer import demo_model

_CONTEXT = 16_384
#: By then each worker that places jobs has heard of the others.
ANNOUNCED_S = 6.0


def long_model(folder: str) -> Path:
    """The built-in model with a longer context."""
    target = Path(folder, "model")
    shutil.copytree(Path(demo_model.__file__).parent, target)
    config = json.loads((target / "config.json").read_text())
    config["max_position_embeddings"] = _CONTEXT
    (target / "config.json").write_text(json.dumps(config))
    return target
