"""Where vLLM is missing, or is another one than was tested."""

import importlib.util

import pytest

from rose.errors import ConfigurationError
from rose_worker import main
from rose_worker.settings import WorkerSettings
from rose_worker.vllm.installation import TESTED_RELEASES, check_version


def test_without_vllm_a_worker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "vllm" else found(name, *rest),
    )
    # when / then
    with pytest.raises(ConfigurationError, match=r"pip install .*\[vllm\]"):
        main.run(WorkerSettings(engine="vllm"))


@pytest.mark.parametrize("version", ["0.31.2", "0.320.0", "1.32.0", "dev"])
def test_a_release_that_was_not_tested_is_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=f"vLLM {version} is not supported: install 0"):
        check_version(version)


@pytest.mark.parametrize("rest", ["", ".0", ".7+cpu", ".1rc2"])
def test_patch_releases_of_a_tested_one_are_taken(rest: str) -> None:
    check_version(TESTED_RELEASES[0] + rest)
