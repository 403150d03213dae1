"""`rose doctor` on a machine that can serve a model, and on one that cannot."""

from pathlib import Path

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
