"""Blocks of a GGUF file are kept number for number, and computed as they say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from transformers import AutoTokenizer

from rose.errors import UnsupportedModel
from roseinfer import InferenceEngine, native
from roseinfer.checkpoints.gguf.checkpoint import load_once
from roseinfer.checkpoints.weights import load_model
from roseinfer.demo_model import MODEL_PATH
from roseinfer.native.weights import QuantizedMatrix
from tests.roseinfer.models import build, check_logits, needs_decoder, tiny_llama
from tests.support.gguf_files import kept_blocks, stored_blocks, write_gguf

KEPT = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)

    def of(model: Any, kind: Type, **options: Any) -> Path:
        return write_gguf(tmp_path / "model.gguf", model, tokenizer, kind, **options)

    return of


# K types have blocks of 256 inputs.
SHAPE = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 256}
MIXTURE = {**SHAPE, "moe_intermediate_size": 256}

#: Where a family needs another one. Phi 3's padding token is 32000 whatever the file says.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "qwen3": {**SHAPE, "head_dim": 128},
    "phi3": {"vocab_size": 32064, "hidden_size": 64, "sliding_window": None},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 512, "mlp_only_layers": []},
    "qwen3_moe": {**MIXTURE, "head_dim": 128},
    "minimax_m2": {**MIXTURE, "head_dim": 64},
}


def llama() -> Any:
    return tiny_llama(**SHAPE, num_key_value_heads=1, initializer_range=0.05)


@pytest.mark.parametrize("kind", KEPT)
def test_every_number_is_that_of_the_file(write: Write, kind: Type) -> None:
    # given: a family whose rows llama.cpp pairs in another way
    path = write(llama(), kind)
    with load_once():
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
        # when
        kept = kept_blocks(path, model)
    # then: not rounded anywhere
    matrices = {name: p for name, p in model.named_parameters() if p.dim() == 2}
    assert kept.keys() == matrices.keys()
    for name, weight in kept.items():
        assert torch.equal(weight.dequantize(torch.float32), matrices[name]), name


@pytest.mark.parametrize("kind", KEPT)
def test_what_kept_numbers_take_is_known_before_they_are_read(write: Write, kind: Type) -> None:
    # given
    path = write(llama(), kind)
    with load_once():
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
    # when
    bits = stored_blocks(path).bits(llama().to("meta"))
    # then
    kept = kept_blocks(path, model)
    assert bits.keys() == kept.keys()
    for name, weight in kept.items():
        packed = QuantizedMatrix(weight.whole()).panels
        assert 8 * packed.nbytes == bits[name] * weight.shape.numel(), name


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_1, Type.Q4_K, Type.Q6_K])
@pytest.mark.parametrize("architecture", ["qwen2_moe", "qwen3_moe", "minimax_m2"])
def test_every_number_of_every_expert_is_that_of_the_file(
    write: Write, architecture: str, kind: Type
) -> None:
    # given: gates and what they multiply in tensors of their own, one parameter of the model
    path = write(build(architecture, **SHAPES[architecture]), kind)
    with load_once():
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
        # when
        kept = kept_blocks(path, model)
    # then
    experts = {name: p for name, p in model.named_parameters() if p.dim() == 3}
    assert len(experts) == 2 * model.config.num_hidden_layers
    for name, parameter in experts.items():
        assert torch.equal(kept[name].dequantize(torch.float32), parameter.flatten(0, 1)), name


@needs_decoder
@pytest.mark.parametrize("architecture", ["qwen2_moe", "qwen3_moe", "minimax_m2"])
def test_experts_of_a_file_are_computed(write: Write, architecture: str) -> None:
    # given: gates and what they multiply of different types in the first layer, which cannot be one
    # matrix then
    model = build(architecture, **SHAPES[architecture], initializer_range=0.05)
    path = write(model, Type.Q4_1, others={"blk.0.ffn_up_exps": Type.Q8_0, "down_exps": Type.Q6_K})
    # when
    kept = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, weights="file")
    # then: the load probe found that it computes the dequantized model. Without its routes rounding
    # would send some tokens to other experts.
    assert kept.decoder_description == f"compiled ({native.build_name()}), file weights"


def test_the_ends_of_a_block_s_range_are_kept(write: Write) -> None:
    """A converter may write -128, which our own eight bits do not use."""
    # given: each byte and each half of a byte that there is
    path = write(llama(), Type.Q8_0)
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.tensor_type == Type.Q8_0:
            blocks = tensor.data.reshape(-1, 34)
            blocks[:, 2:] = np.resize(np.arange(256, dtype=np.uint8), blocks[:, 2:].shape)
    reader.data.flush()
    # when
    with load_once():
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
        kept = kept_blocks(path, model)
    # then
    name = "model.layers.0.mlp.down_proj.weight"
    assert set(kept[name].whole().values.flatten().tolist()) == set(range(256))
    assert torch.equal(kept[name].dequantize(torch.float32), dict(model.named_parameters())[name])


@needs_decoder
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(("llama", kind) for kind in KEPT),
        *(("qwen3", kind) for kind in (Type.Q4_1, Type.Q4_K)),
        *(("phi3", kind) for kind in (Type.Q4_1, Type.Q8_0)),
    ],
)
def test_the_engine_computes_the_dequantized_model(
    write: Write, architecture: str, kind: Type
) -> None:
    # given
    path = write(build(architecture, **SHAPES[architecture], initializer_range=0.05), kind)
    # when
    dequantized = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, dtype="bfloat16")
    kept = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, weights="file")
    # then: all that is lost is the rounding of activations to 8 bits
    assert kept.decoder_description == f"compiled ({native.build_name()}), file weights"
    check_logits(kept, dequantized)
    assert kept.fingerprint != dequantized.fingerprint


@needs_decoder
def test_matrices_side_by_side_may_be_of_several_types(write: Write) -> None:
    # given: as llama.cpp's Q4_K_M mixes them, and a third type
    others = {"attn_v": Type.Q6_K, "ffn_down": Type.Q6_K, "token_embd": Type.Q6_K}
    path = write(llama(), Type.Q4_K, others=others | {"0.attn_q": Type.Q8_0, "ffn_up": Type.Q5_K})
    # when
    kept = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, weights="file")
    # then
    dequantized = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, dtype="bfloat16")
    check_logits(kept, dequantized)


@needs_decoder
def test_matrices_of_other_types_stay_in_bfloat16(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    model = llama()
    others = {"ffn_gate": Type.F16, "attn_output": Type.F16}
    path = write(model, Type.Q4_1, others=others)
    # when
    with caplog.at_level("INFO", logger="roseinfer"):
        kept = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, weights="file")
    # then: gate and up become one matrix, which is quantized or not
    assert f"{2 * model.config.num_hidden_layers} of F16" in caplog.text
    dequantized = InferenceEngine(path, device="cpu", kv_cache_tokens=1024, dtype="bfloat16")
    check_logits(kept, dequantized)


def test_a_file_without_blocks_that_can_be_kept_is_refused(write: Write) -> None:
    with pytest.raises(UnsupportedModel, match=r"none, but 15 of F16: leave weights out"):
        InferenceEngine(write(llama(), Type.F16), device="cpu", weights="file")
