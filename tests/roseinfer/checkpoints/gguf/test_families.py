"""Files of families with a state or latents give the tokens of the model that was written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from transformers import AutoTokenizer

from rose.errors import UnsupportedModel
from roseinfer import InferenceEngine, native
from roseinfer.checkpoints.gguf import families
from roseinfer.checkpoints.gguf.checkpoint import load_once
from roseinfer.checkpoints.gguf.header import READ_HERE, Header
from roseinfer.checkpoints.gguf.layouts import Draft
from roseinfer.checkpoints.weights import load_model
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import answers, build, needs_decoder, prompts, reference
from tests.support.gguf_files import kept_blocks, write_gguf

COUNT = 16
PROMPTS = prompts(5, 20, 33)

#: By their names in tests.roseinfer.models, and what is other than there.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_next": {},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "lfm2": {},
    "lfm2_moe": {},
    "granitemoehybrid": {},
    # What a file of llama.cpp's has been multiplied by.
    "falcon_h1": {
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5,
        "mlp_multipliers": [0.8, 1.3],
        "key_multiplier": 0.7,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
    },
    # llama.cpp bounds no time step.
    "nemotron_h": {"hybrid_override_pattern": "M*EM", "time_step_min": 1e-30},
    "mamba2": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "glm4_moe_lite": {},
    "youtu": {},
}
#: Other kinds of them.
KINDS: list[tuple[str, dict[str, Any]]] = [
    (
        "granitemoehybrid",
        {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 96},
    ),
    ("nemotron_h", {"hybrid_override_pattern": "M*--M"}),
    ("falcon_h1", {"mamba_rms_norm": False}),
    ("deepseek_v2", {"q_lora_rank": None}),
    ("deepseek_v3", {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
]

# K types have blocks of 256 inputs.
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.05}
_DELTA = {
    **_WIDE,
    "head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
WIDE = {
    "qwen3_next": {**_DELTA, **_EXPERTS},
    "qwen3_5": _DELTA,
    "qwen3_5_moe": {**_DELTA, **_EXPERTS},
    "lfm2": _WIDE,
    "lfm2_moe": {**_WIDE, **_EXPERTS},
    "granitemoehybrid": {**_WIDE, "mamba_d_head": 32, "shared_intermediate_size": 256},
    "falcon_h1": {**_WIDE, "mamba_d_head": 16, "mamba_d_ssm": 256},
    "nemotron_h": {
        **_WIDE,
        "head_dim": 64,
        "mamba_num_heads": 16,
        "mamba_head_dim": 16,
        "moe_intermediate_size": 256,
        "moe_shared_expert_intermediate_size": 256,
    },
    "mamba2": {"hidden_size": 256, "head_dim": 32, "initializer_range": 0.05},
    "deepseek_v3": {
        **_WIDE,
        "q_lora_rank": 256,
        "kv_lora_rank": 256,
        "v_head_dim": 64,
        "moe_intermediate_size": 256,
    },
}
#: What llama.cpp keeps in single precision, and what it stores the other way round.
PLAIN = (
    "kv_b_proj",
    *("conv1d", "conv.conv", ".gate.weight", "shared_expert_gate", "router"),
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)

    def of(model: Any, kind: Type = Type.F32, **options: Any) -> Path:
        return write_gguf(tmp_path / "model.gguf", model, tokenizer, kind, **options)

    return of


def model_of(family: str, **changes: Any) -> Any:
    """No vector is all ones or zeros: one that was left as it is would be seen."""
    model = build(family, **{"vocab_size": 2048, **MODELS.get(family, {}), **changes})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.rand(parameter.shape, generator=generator))
        if model.config.tie_word_embeddings:  # the head would repeat the last token
            model.get_input_embeddings().weight.mul_(0.03)
    return model


def load(path: Path, **options: Any) -> InferenceEngine:
    return InferenceEngine(path, device="cpu", kv_cache_tokens=2048, max_context=128, **options)


def check_tokens(path: Path, model: Any) -> None:
    expected = [reference(model, prompt, COUNT) for prompt in PROMPTS]
    assert len({token for ids in expected for token in ids}) >= 4, "it repeats itself"
    assert answers(load(path), PROMPTS, COUNT) == expected


@pytest.mark.parametrize("family", MODELS)
def test_a_file_gives_the_tokens_of_its_model(write: Write, family: str) -> None:
    model = model_of(family)
    check_tokens(write(model), model)


@pytest.mark.parametrize(("family", "changes"), KINDS)
def test_a_file_of_another_kind_gives_the_tokens_of_its_model(
    write: Write, family: str, changes: dict[str, Any]
) -> None:
    model = model_of(family, **changes)
    check_tokens(write(model), model)


def test_a_layer_for_further_tokens_is_left_out(write: Write) -> None:
    # given: its last layer is such a one
    types = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
    model = model_of("qwen3_5", num_hidden_layers=4, layer_types=types)
    path = write(model, more={"nextn_predict_layers": 1})
    # then
    del model.model.layers[3]
    model.config.num_hidden_layers = 3
    model.config.layer_types = types[:3]
    check_tokens(path, model)


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_K])
@pytest.mark.parametrize("family", WIDE)
def test_every_number_of_a_block_is_that_of_the_file(write: Write, family: str, kind: Type) -> None:
    # given
    path = write(model_of(family, **WIDE[family]), kind)
    with load_once():
        model, _ = load_model(str(path), torch.device("cpu"), torch.float32)
        # when
        kept = kept_blocks(path, model)
    # then: not rounded anywhere
    matrices = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and not any(part in name for part in PLAIN)
    }
    assert kept.keys() == matrices.keys()
    for name, weight in kept.items():
        assert torch.equal(weight.dequantize(torch.float32), matrices[name].flatten(0, -2)), name


@needs_decoder
@pytest.mark.parametrize("family", WIDE)
def test_blocks_of_a_file_are_computed(write: Write, family: str) -> None:
    path = write(model_of(family, **WIDE[family]), Type.Q8_0)
    # The load probe found that it computes the dequantized model.
    engine = load(path, weights="file")
    assert engine.decoder_description == f"compiled ({native.build_name()}), file weights"


def test_columns_in_another_order_than_the_blocks_are_not_kept(write: Write) -> None:
    # given: two heads of values to one of keys
    path = write(model_of("qwen3_5", **{**_DELTA, "linear_num_key_heads": 4}), Type.Q8_0)
    with load_once():
        model, _ = load_model(str(path), torch.device("cpu"), torch.float32)
        kept = kept_blocks(path, model)
    # then
    net = "model.layers.0.linear_attn."
    assert f"{net}in_proj_z.weight" in kept
    assert f"{net}out_proj.weight" not in kept


@pytest.mark.parametrize(
    ("family", "file", "says"),
    [
        ("qwen3_5", {"without": "ssm.group_count"}, r"no qwen35\.ssm\.group_count"),
        ("qwen3_5", {"without": "rope.freq_base"}, r"no qwen35\.rope\.freq_base"),
        ("qwen3_5", {"more": {"rope.scaling.type": "yarn"}}, r"rope\.scaling\.type is 'yarn'"),
        ("qwen3_5", {"more": {"of_tomorrow": 1}}, r"of_tomorrow is 1"),
        ("qwen3_5", {"more": {"ssm.time_step_rank": 5}}, "another shape than"),
        ("qwen3_5", {"more": {"ssm.time_step_rank": 9}}, r"can be made of blk\.0\.ssm_a "),
        ("qwen3_5", {"more": {"ssm.time_step_rank": 0}}, "those of no model"),
        ("qwen3_5", {"more": {"ssm.time_step_rank": "six"}}, "those of no model"),
        ("granitemoehybrid", {"more": {"ssm.inner_size": 100}}, "those of no model"),
        ("qwen3_5", {"more": {"block_count": 2}}, r"nothing reads 14 of its tensors, blk\.2\."),
        ("qwen3_5", {"leave_out": "ssm_beta"}, "2 of its weights are missing"),
        ("lfm2_moe", {"more": {"expert_gating_func": 1}}, "expert_gating_func is 1"),
        ("lfm2", {"more": {"rope.dimension_count": 8}}, r"rope\.dimension_count is 8"),
        ("lfm2", {"more": {"attention.sliding_window": 8}}, r"attention\.sliding_window is 8"),
        ("deepseek_v2", {"more": {"expert_weights_norm": True}}, "after a softmax"),
        ("deepseek_v2", {"more": {"expert_gating_func": 3}}, "expert_gating_func is 3"),
        ("deepseek_v3", {"without": "expert_gating_func"}, "after a softmax"),
        ("deepseek_v3", {"more": {"rope.scaling.yarn_log_multiplier": 0.1}}, "yarn_log_mult"),
        ("granitemoehybrid", {"more": {"rope.scaling.finetuned": True}}, "Bamba"),
    ],
)
def test_a_file_that_would_give_other_tokens_is_refused(
    write: Write, family: str, file: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says) as caught:
        load(write(model_of(family), **file))
    assert "\n" not in str(caught.value)


def test_a_glm_flash_is_known_by_its_size() -> None:
    """Its files do not say how it chooses experts; llama.cpp knows them in this way."""

    def is_sigmoid(tokens: int, layers: int, **said: int) -> bool:
        metadata = {f"deepseek2.{name}": value for name, value in said.items()}
        counts = {"tokenizer.ggml.tokens": tokens}
        draft = Draft(Header("deepseek2", metadata, counts, {}, {}, 0))
        return families._has_sigmoid_routes(draft, layers)

    assert is_sigmoid(154_880, 47)
    assert not is_sigmoid(154_880, 46)
    assert not is_sigmoid(102_400, 47)
    assert is_sigmoid(102_400, 27, expert_gating_func=2)


def test_the_header_knows_which_architectures_have_a_layout() -> None:
    assert sorted(READ_HERE) == sorted(families._LAYOUTS)
