"""The layers of encoders in the compiled library: transformers' numbers, and the same bits whatever
is beside a text."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from rose.errors import ConfigurationError, UnsupportedModel
from roseinfer.encoders import compiled_layers
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.tokens import EncodedInput
from roseinfer.native import compiler
from tests.roseinfer.native.builds import using
from tests.support.encoders import FAMILIES, VOCAB, save_encoder

LENGTHS = (1, 2, 5, 15, 16, 17, 31, 48, 63, 64, 65, 100, 120)
#: Of a vector, to its length.
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.1}


def texts(*lengths: int) -> list[EncodedInput]:
    draw = random.Random(1)
    return [
        EncodedInput(tuple(draw.randrange(4, VOCAB) for _ in range(length))) for length in lengths
    ]


def expected(folder: Path, inputs: list[EncodedInput]) -> Tensor:
    """By transformers' own code, in float32: means of hidden states."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [model(input_ids=torch.tensor([one.ids])).last_hidden_state[0] for one in inputs]
    return torch.stack([own.mean(0) for own in states])


def errors(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).norm(dim=1) / wanted.norm(dim=1)


def check_batches(encoder: Encoder, inputs: list[EncodedInput]) -> Tensor:
    """The same bits alone, together and in any order."""
    alone = torch.cat([encoder.encode([one]) for one in inputs])
    draw = random.Random(2)
    for count in (2, 3, len(inputs), len(inputs)):
        order = draw.sample(range(len(inputs)), count)
        assert torch.equal(encoder.encode([inputs[number] for number in order]), alone[order])
    return alone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_is_the_same_bits_in_any_batch(tmp_path: Path, family: str, dtype: str) -> None:
    # given
    folder, inputs = save_encoder(tmp_path / "m", family), texts(*LENGTHS)
    encoder = Encoder(str(folder), "embed", dtype=dtype)
    assert encoder.is_compiled
    # when
    found = check_batches(encoder, inputs)
    # then
    assert errors(found, expected(folder, inputs)).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", compiler.BUILDS)
def test_each_build_computes_the_same(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, build: str, dtype: str
) -> None:
    # given: a window, and a head's size and number that no vector's width divides
    sizes = {"hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 98}
    folder, inputs = save_encoder(tmp_path / "m", "modernbert", sizes=sizes), texts(*LENGTHS)
    # when
    with using(build, tmp_path_factory.getbasetemp()):
        encoder = Encoder(str(folder), "embed", dtype=dtype)
        found = check_batches(encoder, inputs)
    # then
    assert encoder.is_compiled
    assert errors(found, expected(folder, inputs)).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_scores_are_the_same_bits_in_any_batch(tmp_path: Path, family: str) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", family, labels=3)), "score")
    assert encoder.is_compiled
    check_batches(encoder, texts(*LENGTHS))


def test_heads_change_no_bit_with_the_batch(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m", dense=[(33, "Tanh"), (20, "Identity")], normalize=True)
    check_batches(Encoder(str(folder), "embed"), texts(*LENGTHS))


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("bert", {"hidden_act": "mish"}),
        # It has a product before its layers.
        ("electra", {"embedding_size": 24}),
    ],
)
def test_what_cannot_be_compiled_is_transformers_own_code(
    tmp_path: Path, family: str, sizes: dict[str, Any]
) -> None:
    # given
    folder = save_encoder(tmp_path / "m", family, sizes=sizes)
    encoder, inputs = Encoder(str(folder), "embed"), texts(*LENGTHS)
    # when
    found = encoder.encode(inputs)
    # then
    assert (encoder.packs, encoder.is_compiled) == (True, False)
    assert errors(found, expected(folder, inputs)).max() < TOLERANCE["float32"]


def test_layers_that_compute_something_else_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    folder, inputs = save_encoder(tmp_path / "m", "nomic"), texts(*LENGTHS)
    find = compiled_layers.encoder_stack

    def without_rotation(*arguments: Any) -> Any:
        stack = find(*arguments)
        assert stack is not None
        return type(stack)(
            layers=stack.layers, activation=stack.activation, gated=True, norms_sums=True
        )

    monkeypatch.setattr(compiled_layers, "encoder_stack", without_rotation)
    # when
    encoder = Encoder(str(folder), "embed")
    # then
    assert (encoder.packs, encoder.is_compiled) == (True, False)
    assert errors(encoder.encode(inputs), expected(folder, inputs)).max() < TOLERANCE["float32"]


@pytest.mark.parametrize(("weights", "tolerance"), [("int8", 0.05), ("int4", 0.4)])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_weights_of_few_bits(tmp_path: Path, family: str, weights: str, tolerance: float) -> None:
    # given
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    folder, inputs = save_encoder(tmp_path / "m", family, sizes=sizes), texts(*LENGTHS)
    # when
    encoder = Encoder(str(folder), "embed", weights=weights)
    found = check_batches(encoder, inputs)
    # then
    wanted = expected(folder, inputs)
    assert 1e-4 < errors(found, wanted).mean() < tolerance
    assert encoder.dtype == "bfloat16"
    assert encoder.fingerprint != Encoder(str(folder), "embed", dtype="bfloat16").fingerprint


@pytest.mark.parametrize(
    ("family", "weights", "said"),
    [
        ("mpnet", "int8", "weights='int8' is for compiled layers alone"),
        ("bert", "int8", "multiple of 32: one of this model has 48"),
        ("bert", "int5", "weights='int5' is not one of int8, int4"),
        ("bert", "file", "weights='file' is for models that generate"),
    ],
)
def test_weights_that_a_model_cannot_have_are_refused(
    tmp_path: Path, family: str, weights: str, said: str
) -> None:
    folder = save_encoder(tmp_path / "m", family)
    with pytest.raises((ConfigurationError, UnsupportedModel), match=said):
        Encoder(str(folder), "embed", weights=weights)
