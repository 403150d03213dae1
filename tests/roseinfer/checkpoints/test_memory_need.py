"""What a model will take of main memory is known before it is read, and refused where it is not
there."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rose.errors import ConfigurationError
from roseinfer import InferenceEngine
from roseinfer.checkpoints import memory_need, weights
from roseinfer.checkpoints.memory_need import MemoryNeed
from tests.roseinfer.models import build, byte_tokenizer, tiny_llama

SIZES = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama(**SIZES).bfloat16().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_plain_weights_take_what_their_numbers_do(dtype: torch.dtype, size: int) -> None:
    model = tiny_llama(**SIZES)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert memory_need.memory_need(model, dtype) == MemoryNeed(numbers * size, 1024 * 256 * size)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_weights_of_few_bits_take_what_is_packed(architecture: str, form: str) -> None:
    # given
    model = build(architecture, **SIZES, moe_intermediate_size=256).bfloat16()
    need = memory_need.memory_need(model, torch.bfloat16, form)
    plain = sum(parameter.nbytes for parameter in model.parameters())
    # then: the embedding is plain, all else but norms and routers has that many bits
    embedding = model.get_input_embeddings().weight.nbytes
    share = {"int8": 8.25, "int4": 4.5}[form] / 16
    inside = plain - 2 * embedding
    assert need.weights == pytest.approx(embedding * (1 + 8.25 / 16) + inside * share, rel=0.03)
    # and: what is packed is there as it was read, and as it is packed from
    largest = max(parameter.nbytes for parameter in model.parameters())
    assert need.largest == 2 * largest


@pytest.mark.parametrize(
    ("options", "free", "said"),
    [
        ({"dtype": "float32"}, 7_000_000, r"7 MB for .* \(float32\).*weights='int8' takes 2 MB"),
        ({"weights": "int8"}, 1_000_000, r"\(int8\).*\. Take a smaller model, or a machine"),
        ({"kv_cache_tokens": 10**6}, 10**9, r"KV cache of 1000000 tokens\. Ask for a smaller KV"),
    ],
)
def test_what_memory_cannot_hold_is_refused_before_it_is_read(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    free: int,
    said: str,
) -> None:
    monkeypatch.setattr(memory_need, "free_memory", lambda: free)
    monkeypatch.delattr(weights, "_load_weights")
    # then
    with pytest.raises(ConfigurationError, match=said):
        InferenceEngine(folder, device="cpu", **options)


@pytest.mark.parametrize("architecture", ["mamba2", "falcon_h1", "gpt2", "deepseek_v3", "gemma4"])
def test_a_configuration_of_any_family_is_measured(architecture: str) -> None:
    """One without attention has no heads, and others name them in their own way."""
    config = build(architecture).config
    memory_need.check_memory(config, torch.bfloat16, None, None, cache_tokens=64)


@pytest.mark.parametrize(("architecture", "full"), [("gemma4", 2 * 32), ("gemma4_moe", 2 * 32)])
def test_layers_of_two_sizes_take_what_each_does(architecture: str, full: int) -> None:
    """One that slides, and two others: of the first model one has another's keys, and of the second
    both have one head."""
    config = build(architecture).config
    sliding = 2 * 16
    assert memory_need._bytes_per_token(config, torch.float32) == 4 * 2 * (sliding + full)


def test_one_line_says_what_it_takes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    # when
    with caplog.at_level("INFO", logger="roseinfer"):
        InferenceEngine(folder, device="cpu", dtype="bfloat16", kv_cache_tokens=64)
    # then
    assert "for the weights (bfloat16)" in caplog.text
    assert "for a KV cache of 64 tokens" in caplog.text
