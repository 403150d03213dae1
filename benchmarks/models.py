"""Models of real shapes with random weights: speed does not depend on what they say."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma4TextConfig,
    Glm4MoeLiteConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from roseinfer.checkpoints.draft_layer import DraftLayer, config_of_one
from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.demo_model import MODEL_PATH
from roseinfer.model.attention import IMPLEMENTATION

BUILT_IN = "built-in"


def llama_135m(layers: int = 30, context: int = 2048) -> PreTrainedConfig:
    return LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )


def llama_80m() -> PreTrainedConfig:
    """Half of the layers: on two cores with AVX-512 and bfloat16 a batch of 32 makes about 600
    tokens/s, for what the service costs a fast engine."""
    return llama_135m(layers=15)


def qwen3_600m(context: int = 2048) -> PreTrainedConfig:
    """The shape of Qwen3-0.6B."""
    return Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )


def moe_1b() -> PreTrainedConfig:
    """The shape of Granite 3.1 1B-A400M, a mixture of experts, in a family that peers read too."""
    return Qwen3MoeConfig(
        hidden_size=1024,
        moe_intermediate_size=512,
        intermediate_size=512,
        num_experts=32,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=49152,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )


def qwen3_5_800m() -> PreTrainedConfig:
    """The shape of Qwen3.5-0.8B: three gated delta nets before each layer that attends."""
    return Qwen3_5TextConfig(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        vocab_size=248320,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def qwen3_5_4b() -> PreTrainedConfig:
    """The shape of Qwen3.5-4B."""
    return Qwen3_5TextConfig(
        hidden_size=2560,
        intermediate_size=9216,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        vocab_size=248320,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def gemma4_e2b(layers: int = 35, sharing: int = 20) -> PreTrainedConfig:
    """The shape of Gemma 4's smallest: inputs of each layer, and the last layers share keys and
    values."""
    return Gemma4TextConfig(
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * (layers // 5),
        num_kv_shared_layers=sharing,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
        max_position_embeddings=4096,
    )


def glm_4_7_flash_cut() -> PreTrainedConfig:
    """The shape of GLM 4.7 Flash, latent attention and 64 experts, with 6 of its 47 layers."""
    return Glm4MoeLiteConfig(num_hidden_layers=6, max_position_embeddings=4096)


def llama_8b() -> PreTrainedConfig:
    """The shape of Llama-3.1-8B."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
}

#: Each model takes a config of its own: transformers writes into it.
Configs = Mapping[str, Callable[[], PreTrainedConfig]]
ON_CPU: Configs = {
    "llama-135m": llama_135m,
    "llama-135m-long": lambda: llama_135m(context=40960),
    "llama-80m": llama_80m,
    "gpt2": GPT2Config,
    "qwen3-0.6b": qwen3_600m,
    "moe-1b": moe_1b,
    "qwen3.5-0.8b": qwen3_5_800m,
    "qwen3.5-4b": qwen3_5_4b,
    "gemma4-e2b": gemma4_e2b,
    "gemma4-e2b-cut": lambda: gemma4_e2b(layers=10, sharing=5),
    "glm-4.7-flash-cut": glm_4_7_flash_cut,
}
ON_GPU: Configs = {"qwen3-0.6b": lambda: qwen3_600m(40960), "llama-8b": llama_8b}
TINY: Configs = {
    "qwen3-0.6b": lambda: Qwen3Config(**_TINY, tie_word_embeddings=True),
    "llama-8b": lambda: LlamaConfig(**_TINY),
}
#: With a layer for further tokens.
DRAFTING: Configs = {
    "qwen3.5-0.8b": qwen3_5_800m,
    "tiny": lambda: Qwen3_5TextConfig(
        **_TINY | {"num_hidden_layers": 2, "vocab_size": 24_576},
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=True,
    ),
}
NAMES = (BUILT_IN, *ON_CPU)


def random_model(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """Made on the device, 8 billion weights in seconds; the same weights every time."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if config.model_type == "gemma4_text":  # its scores are scaled by what this norm has learned
        norms = (one for name, one in model.named_parameters() if name.endswith("q_norm.weight"))
        for norm in norms:
            torch.nn.init.constant_(norm, norm.numel() ** -0.5)
    return model


def with_draft_layer(config: PreTrainedConfig) -> LoadedModel:
    """In bfloat16, with a layer for further tokens whose weights are random, too."""
    cpu, dtype = torch.device("cpu"), torch.bfloat16
    model, layer = random_model(config, cpu, dtype), random_model(config_of_one(config), cpu, dtype)
    for each in (model, layer):
        each.set_attn_implementation(IMPLEMENTATION)
    layer.model.embed_tokens, layer.lm_head = model.model.embed_tokens, model.lm_head
    size = config.hidden_size
    projection = torch.nn.Linear(2 * size, size, bias=False, dtype=dtype)
    norm = layer.model.norm
    return LoadedModel(model, None, "random", draft_layer=DraftLayer(layer, projection, norm, norm))


def gguf_file(name: str, folder: Path, kind: str) -> Path:
    """The model called `name` with matrices of the type `kind`, the head's of 8 bits as our own
    formats have it."""
    from gguf import GGMLQuantizationType

    from tests.support.gguf_files import write_gguf

    source = model_folder(name, folder) if name == BUILT_IN else folder / name
    model = AutoModelForCausalLM.from_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    head = {"output.weight": GGMLQuantizationType.Q8_0, "token_embd": GGMLQuantizationType.Q8_0}
    path = folder / f"{name}.{kind}.gguf"
    return write_gguf(path, model, tokenizer, GGMLQuantizationType[kind], others=head)


def model_folder(name: str, folder: Path) -> Path:
    """Where the model called `name` lies; one with random weights is saved in `folder`."""
    if name == BUILT_IN:
        return MODEL_PATH
    model = random_model(ON_CPU[name](), torch.device("cpu"), torch.bfloat16)
    model.save_pretrained(folder / name)
    return folder / name
