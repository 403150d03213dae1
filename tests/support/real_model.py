"""A model that understands, where it is at hand: `rose chat` has fetched it before."""

from pathlib import Path

import pytest

from rose_cli.chat.model import SMOLLM2, cached


def real_model() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct. Skips the test where there is none."""
    if (path := cached()) is None:
        pytest.skip(f"{SMOLLM2.name} is not here: rose chat fetches it")
    return path
