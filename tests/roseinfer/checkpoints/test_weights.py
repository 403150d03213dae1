"""Weights on their way into a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roseinfer.checkpoints import weights


@pytest.mark.parametrize(
    ("device", "accelerate", "expected"),
    [("cuda:1", True, {"": torch.device("cuda:1")}), ("cuda:1", False, None), ("cpu", True, None)],
)
def test_weights_go_straight_to_a_gpu(
    device: str, accelerate: bool, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Loaded:
        def to(self, device: torch.device) -> Loaded:
            return self

        def eval(self) -> Loaded:
            return self

    class Loader:
        @staticmethod
        def from_pretrained(source: str, **options: Any) -> tuple[Loaded, dict[str, Any]]:
            seen.update(options)
            return Loaded(), {}

    monkeypatch.setattr(weights, "AutoModelForCausalLM", Loader)
    monkeypatch.setattr(weights, "load_config", lambda source: None)
    monkeypatch.setattr(weights, "text_part", lambda config: None)
    monkeypatch.setattr(weights, "_has_accelerate", lambda: accelerate)
    weights.load_model("some/model", torch.device(device), None)
    assert seen["device_map"] == expected
