"""Which vLLM this is, and the variables that it must find before it is imported."""

import importlib.util
import os

from rose.errors import ConfigurationError
from rose.installation import how_to_install

#: The releases that the tests have run with. The adapter uses parts that vLLM changes freely.
TESTED_RELEASES = ("0.32",)

#: Without these it would not be the engine that is tested: vLLM's engine core in this process, and
#: the model runner that takes logits processors of the interface used here.
_REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}

#: No reports to its authors, and log records go where the worker's own go.
_DEFAULTS = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CONFIGURE_LOGGING": "0"}


def check_installation() -> None:
    """Prepare this process for vLLM. Importing it takes seconds.

    Raises: ConfigurationError: vLLM is missing or is not one of `TESTED_RELEASES`.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            f"ROSE_ENGINE=vllm needs vLLM, which is not installed: {how_to_install('vllm')}"
        )
    os.environ.update(_REQUIRED)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from vllm.version import __version__

    check_version(__version__)


def check_version(version: str) -> None:
    """Raises: ConfigurationError: this release was not tested."""
    if not any(
        version == release or version.startswith(f"{release}.") for release in TESTED_RELEASES
    ):
        raise ConfigurationError(
            f"vLLM {version} is not supported: install {' or '.join(TESTED_RELEASES)}, "
            "the releases that this version of roseinfer was tested with"
        )
