"""Files of families that this engine reads give the tokens of the model that was written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType as Type
from transformers import AutoTokenizer, LlamaTokenizer

from rose.errors import UnsupportedModel
from roseinfer import InferenceEngine, native
from roseinfer.checkpoints.gguf import families
from roseinfer.checkpoints.gguf.checkpoint import load_once
from roseinfer.checkpoints.gguf.header import READ_HERE, Header
from roseinfer.checkpoints.gguf.latents import has_sigmoid_routes
from roseinfer.checkpoints.gguf.layouts import Draft
from roseinfer.checkpoints.tokenizer import load_tokenizer
from roseinfer.checkpoints.weights import load_model
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import answers, build, needs_decoder, prompts, reference
from tests.support.gguf_files import MERGES, gemma_tokenizer, kept_blocks, vocabulary, write_gguf

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
    # What llama.cpp takes its multiplier from, of no file.
    "minicpm3": {"dim_model_base": 256},
    "mistral": {"head_dim": 16, "sliding_window": None},
    "ministral3": {},
    "hunyuan_v1_dense": {},
    "gemma4": {"vocab_size_per_layer_input": 2048},
    "gemma4_moe": {},
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_TWO = {
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 500_000.0,
        "partial_rotary_factor": 0.4,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0},
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.3, 2.1, 3.7],
    "long_factor": [1.0, 2.5, 5.5, 9.5],
    "original_max_position_embeddings": 128,
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
    ("deepseek_v2", {"rope_parameters": _YARN}),
    (
        "deepseek_v3",
        {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 4.0}},
    ),
    ("minicpm3", {"dim_model_base": 256, "rope_parameters": _LONG}),
    (
        "ministral3",
        {
            "rope_parameters": {
                **_YARN,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "llama_4_scaling_beta": 0.3,
            }
        },
    ),
    # Its last layers have a wide MLP, and their keys are of the first ones.
    (
        "gemma4",
        {
            "num_hidden_layers": 5,
            "layer_types": [*("sliding_attention", "full_attention") * 2, "full_attention"],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
    ),
    # Of 11 pairs of dimensions 4 are rotated.
    (
        "gemma4",
        {
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 22,
            "rope_parameters": _TWO,
        },
    ),
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
_HEADS = {**_WIDE, "head_dim": 64, "global_head_dim": 128}
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
    "minicpm3": {
        **_WIDE,
        "dim_model_base": 256,
        "q_lora_rank": 256,
        "kv_lora_rank": 256,
        "v_head_dim": 64,
    },
    "gemma4": {**_HEADS, "hidden_size_per_layer_input": 256},
    "gemma4_moe": {**_HEADS, "moe_intermediate_size": 256},
}
#: What llama.cpp keeps in single precision.
PLAIN = ("conv1d", "conv.conv", ".gate.weight", "shared_expert_gate", "router")
#: And what it stores the other way round.
TURNED = {"deepseek_v3": ("kv_b_proj",)}

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
        for parameter in model.state_dict().values():
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
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
        # when
        kept = kept_blocks(path, model)
    # then: not rounded anywhere
    matrices = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1
        and not any(part in name for part in (*PLAIN, *TURNED.get(family, ())))
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
        model = load_model(str(path), torch.device("cpu"), torch.float32).model
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
        ("deepseek_v2", {"more": {"rope.scaling.type": "linear"}}, r"scaling\.type is 'linear'"),
        ("deepseek_v2", {"more": {"rope.scaling.type": "yarn"}}, r"no deepseek2\.rope\.scaling"),
        (
            "deepseek_v2",
            {"more": {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.0}},
            r"yarn_log_multiplier is 0, and one above 0",
        ),
        ("ministral3", {"more": {"rope.scaling.type": "none"}}, "without YaRN"),
        ("ministral3", {"without": "rope.scaling.yarn_log_multiplier"}, "yarn_log_multiplier"),
        ("hunyuan_v1_dense", {"more": {"expert_count": 4}}, "expert_count is 4"),
        ("hunyuan_v1_dense", {"more": {"rope.scaling.alpha": 50.0}}, "alpha is 50"),
        ("mistral", {"more": {"attention.value_length": 8}}, "value_length is 8, and 16"),
        ("minicpm3", {"more": {"rope.scaling.original_context_length": 32}}, "length is 32"),
        ("minicpm3", {"more": {"rope.scaling.attn_factor": 1.2}}, r"attn_factor is 1\.2"),
        ("minicpm3", {"more": {"residual_scale": 0.2}}, r"residual_scale is 0\.2"),
        ("gemma4", {"without": "rope.freq_base_swa"}, r"no gemma4\.rope\.freq_base_swa"),
        ("gemma4", {"leave_out": "rope_freqs"}, r"no rope_freqs\.weight"),
        ("gemma4", {"leave_out": "output_scale"}, "3 of its weights are missing"),
        ("gemma4", {"more": {"attention.sliding_window_pattern": [True] * 3}}, "sees all"),
        ("gemma4", {"more": {"attention.sliding_window_pattern": 6}}, "sees all"),
        ("gemma4", {"more": {"attention.value_length_swa": 8}}, "value_length_swa is 8"),
        ("gemma4", {"more": {"rope.dimension_count": 8}}, r"rope\.dimension_count is 8"),
        ("gemma4", {"more": {"feed_forward_length": [96, 96, 48]}}, r"is \[96, 96, 48\]"),
        ("gemma4", {"more": {"attention.head_count_kv": [2, 2, 1]}}, "among layers of one kind"),
        ("gemma4", {"more": {"attention.key_length": 24}}, "value_length is 32"),
        ("gemma4", {"more": {"rope.scaling.factor": 8.0}}, r"rope\.scaling\.factor is 8"),
        ("gemma4", {"more": {"attention.scale": 0.0625}}, r"attention\.scale is 0\.0625"),
        ("gemma4", {"more": {"attention.causal": False}}, r"attention\.causal is False"),
        ("gemma4_moe", {"more": {"expert_gating_func": 2}}, "expert_gating_func is 2"),
    ],
)
def test_a_file_that_would_give_other_tokens_is_refused(
    write: Write, family: str, file: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says) as caught:
        load(write(model_of(family), **file))
    assert "\n" not in str(caught.value)


def test_the_tokenizer_of_a_minicpm_3_gives_its_tokens(tmp_path: Path) -> None:
    # given
    own = LlamaTokenizer(vocab=vocabulary("<unk>", "<s>", "</s>"), merges=MERGES)
    path = write_gguf(tmp_path / "model.gguf", model_of("minicpm3"), own)
    # when
    loaded = load_tokenizer(str(path))
    # then
    for text in ("the theatre", "d\u00e9j\u00e0\n\nthe  x"):
        ids = own.encode(text, add_special_tokens=False)
        assert loaded.encode(text) == [own.bos_token_id, *ids]
        assert loaded.decode(ids) == text


def test_the_tokenizer_of_a_gemma_4_gives_its_tokens(tmp_path: Path) -> None:
    # given
    own = gemma_tokenizer()
    path = write_gguf(tmp_path / "model.gguf", model_of("gemma4"), own)
    # when
    loaded = load_tokenizer(str(path))
    # then
    for text in ("the theatre", "  the  d\u00e9j\u00e0\n\n\nx", "<bos>the<eos> <unused400>"):
        ids = own.encode(text.replace("<unused400>", ""), add_special_tokens=False)
        ids += [400] if "400" in text else []
        assert loaded.encode(text) == ids
        assert loaded.decode(ids) == text
    assert loaded.eos_token_id == own.eos_token_id


@pytest.mark.parametrize(
    ("key", "value"), [("pre", "gpt-2"), ("model", "llama"), ("suppress_tokens", 7)]
)
def test_another_tokenizer_of_a_gemma_4_is_refused(
    tmp_path: Path, key: str, value: str | int
) -> None:
    name = f"tokenizer.ggml.{key}"
    path = tmp_path / "model.gguf"
    write_gguf(path, model_of("gemma4"), gemma_tokenizer(), more={name: value})
    with pytest.raises(UnsupportedModel, match=rf"{re.escape(name)} is {value!r}"):
        load_tokenizer(str(path))


def test_a_glm_flash_is_known_by_its_size() -> None:
    """Its files do not say how it chooses experts; llama.cpp knows them in this way."""

    def is_sigmoid(tokens: int, layers: int, **said: int) -> bool:
        metadata = {f"deepseek2.{name}": value for name, value in said.items()}
        counts = {"tokenizer.ggml.tokens": tokens}
        draft = Draft(Header("deepseek2", metadata, counts, {}, {}, 0))
        return has_sigmoid_routes(draft, layers)

    assert is_sigmoid(154_880, 47)
    assert not is_sigmoid(154_880, 46)
    assert not is_sigmoid(102_400, 47)
    assert is_sigmoid(102_400, 27, expert_gating_func=2)


def test_the_header_knows_which_architectures_have_a_layout() -> None:
    assert sorted(READ_HERE) == sorted(families._LAYOUTS)
