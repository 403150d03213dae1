"""`rose doctor` on a machine that can serve a model, and on one that cannot."""

from pathlib import Path

import pytest

from rose_cli.doctor import machine
from rose_cli.doctor.findings import Verdict
from rose_worker.settings import WorkerSettings
from roseinfer import demo_model
from tests.roseinfer.models import construct

TOKENIZER = str(Path(demo_model.__file__).parent)


def test_a_machine_that_can_serve_the_built_in_model() -> None:
    found = {finding.check: finding for finding in machine.examine(WorkerSettings(), load=True)}
    assert found["device"].verdict is found["model"].verdict is Verdict.OK
    assert "built-in" in found["model"].says


def test_a_second_tier_that_is_there(tmp_path: Path) -> None:
    settings = WorkerSettings(second_tier_bytes=2**22, second_tier_folder=str(tmp_path / "tier"))
    found = {finding.check: finding for finding in machine.examine(settings, load=True)}
    assert found["second tier"].verdict is Verdict.OK
    assert f"in {tmp_path / 'tier'}" in found["second tier"].says


def test_a_second_tier_that_is_off_for_want_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    settings = WorkerSettings(second_tier_bytes=2**22, second_tier_folder=str(tmp_path / "tier"))
    # when
    found = {finding.check: finding for finding in machine.examine(settings, load=True)}
    # then
    assert found["model"].verdict is Verdict.OK
    assert found["second tier"].verdict is Verdict.WARN
    assert "off: [Errno 28] No space left on device" in found["second tier"].says


def test_a_second_tier_that_others_could_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    settings = WorkerSettings(second_tier_bytes=2**22, second_tier_folder=str(tmp_path))
    *_, last = machine.examine(settings, load=True)
    assert last.verdict is Verdict.FAIL
    assert f"chmod 700 {tmp_path}" in last.says


def test_a_model_that_the_engine_does_not_support(tmp_path: Path) -> None:
    # given: one without any attention, which tells a context length or does not
    construct("MambaConfig", "MambaForCausalLM").save_pretrained(tmp_path / "short")
    endless = construct("MambaConfig", "MambaForCausalLM", max_position_embeddings=None)
    endless.save_pretrained(tmp_path / "endless")
    for settings, says in (
        (WorkerSettings(model=str(tmp_path / "short"), tokenizer=TOKENIZER), "MambaMixer"),
        (WorkerSettings(model=str(tmp_path / "endless"), tokenizer=TOKENIZER), "MambaMixer"),
        (WorkerSettings(model="/no/such/folder"), "/no/such/folder"),
        (WorkerSettings(device="warp"), "warp"),
    ):
        # when
        *_, last = machine.examine(settings, load=True)
        # then
        assert last.verdict is Verdict.FAIL
        assert says in last.says
