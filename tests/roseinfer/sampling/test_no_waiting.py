"""A step never makes the host wait for the device.

Here the device is torch's "meta", which knows shapes but no values: whatever reads a value back, or
needs one to know a shape, raises. So it is stricter than a GPU, on which such an operation waits.
"""

from typing import Any

import pytest
import torch

from roseinfer import InferenceEngine, OnlineScheduler
from roseinfer.devices.transfer import Download
from roseinfer.execution import runners
from roseinfer.model.transformers_model import PackedModel
from roseinfer.sampling import sampler
from tests.roseinfer.models import byte_tokenizer, greedy, prompts, tiny_llama
from tests.roseinfer.sessions.test_resume import FEATURES

META = torch.device("meta")
PARAMS = {
    "greedy": greedy(8),
    "top-k": greedy(8, temperature=1.1, top_k=50),
    "top-p": greedy(8, temperature=1.1, top_p=0.9),
    "all filters": greedy(8, temperature=1.1, top_k=50, top_p=0.9, min_p=0.05),
    **{name: greedy(8, **changes) for name, changes in FEATURES.items()},
    "all, sampled": greedy(80, **FEATURES["all"], temperature=0.8),
}


class Device:
    """What came down from the meta device: counted, and made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloads: list[list[torch.Tensor]] = []
        device = self

        class Counted(Download):
            def __init__(self, tensors: Any) -> None:
                self.coming = list(tensors)
                device.downloads.append(self.coming)
                assert all(tensor.device == META for tensor in tensors)

            def wait(self) -> list[torch.Tensor]:
                return [torch.zeros(t.shape, dtype=t.dtype) + 7 for t in self.coming]

        monkeypatch.setattr(sampler, "Download", Counted)


@pytest.fixture
def engine(no_native: None, monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    """Made on CPU, then moved to where there are no values."""
    monkeypatch.setattr(runners, "pack_linears", lambda model: None)  # a CPU's
    made = InferenceEngine.from_model(tiny_llama(), byte_tokenizer(), kv_cache_tokens=256)
    made.model.to(META)
    made.device = META
    made.cache.device = META
    made.cache.keys[:] = [keys.to(META) for keys in made.cache.keys]
    made.cache.values[:] = [values.to(META) for values in made.cache.values]
    runner = made._runner
    assert isinstance(runner, PackedModel)
    runner.bind(made.cache)
    return made


@pytest.mark.parametrize("kind", sorted(PARAMS))
def test_a_step_reads_nothing_back(
    engine: InferenceEngine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill, then decode beside others, every way of sampling; one download a step."""
    device = Device(monkeypatch)
    scheduler = OnlineScheduler(engine, overlap=True)
    for prompt in prompts(20, 5):
        scheduler.add_request(prompt, params=PARAMS[kind])
    scheduler.add_request(prompts(9)[0], params=greedy(9))
    for step in range(1, 5):
        scheduler.step()
        assert len(device.downloads) == step


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_nothing_synchronises() -> None:
    model = tiny_llama().cuda()
    engine = InferenceEngine.from_model(model, byte_tokenizer(), kv_cache_tokens=256)
    scheduler = OnlineScheduler(engine, overlap=True)
    for params in PARAMS.values():
        scheduler.add_request(prompts(20)[0], params=params)
    for _ in range(3):  # compiles what there is to compile
        scheduler.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            scheduler.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
