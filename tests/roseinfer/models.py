"""Small random models, tokenizers, and ways to run them, for the tests of the engine."""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from roseinfer import InferenceEngine, OnlineScheduler, SamplingParams, StepOutput, native
from roseinfer.execution.engine_core import StepLogits
from roseinfer.gpu.options import GpuOptions
from roseinfer.model.quantized_weight import WIDE_GROUP, Form, QuantizedWeight
from roseinfer.native import library
from roseinfer.sampling.sampler import SampledTokens, sample_tokens
from roseinfer.sessions.session import Chunk, SamplingRequest

needs_decoder = pytest.mark.skipif(
    not native.available(), reason="the installation could not compile the decoder"
)

VOCAB = 300
WAYS = ("compiled", "torch")  # to sample on a CPU

_BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GQA = {"num_key_value_heads": 2, "intermediate_size": 96}
_MOE = {
    **_GQA,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
# Two groups of experts, of which one is chosen; the first layer has a plain MLP.
_GROUPED = {
    **_MOE,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
_GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
_GEMMA = {**_GQA, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}

_LATENT = {
    "intermediate_size": 96,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_LATENT_MOE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
#: A longer base of the rotation.
_HUNYUAN = {
    **_GQA,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0},
}
#: From the 8th position on.
_LONGER_QUERIES = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.5,
}
_DELTA = {
    **_GQA,
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 13,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_MAMBA = {
    **_GQA,
    "mamba_n_heads": 16,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 11,
    "mamba_d_conv": 3,
}
_SHORT = {
    **_GQA,
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 4,
    "block_auto_adjust_ff_dim": False,
}
# Those of layers with a state, of odd shapes: gated delta nets, short convolutions, Mamba 2's.
STATEFUL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {**_MOE, **_DELTA, "shared_expert_intermediate_size": 48},
    ),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _DELTA),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        {**_MOE, **_DELTA, "shared_expert_intermediate_size": 48},
    ),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        "OlmoHybridForCausalLM",
        {**_DELTA, "linear_num_key_heads": 6},
    ),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", _SHORT),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM", {**_MOE, **_SHORT, "num_dense_layers": 1}),
    # A sliding layer, and a full one that rotates half of a head.
    "lfm3": (
        "Lfm3Config",
        "Lfm3ForCausalLM",
        {
            **_GQA,
            "head_dim": 16,
            "layer_types": ["conv", "full_attention", "sliding_attention"],
            "conv_L_cache": 7,
            "sliding_window": 8,
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            **_MOE,
            **_MAMBA,
            **_GRANITE,
            "shared_intermediate_size": 48,
            "layer_types": ["mamba", "attention", "mamba"],
        },
    ),
    "bamba": ("BambaConfig", "BambaForCausalLM", {**_MAMBA, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", {**_MAMBA, "mamba_d_ssm": 128}),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        {
            **_MOE,
            "n_routed_experts": 4,
            "moe_shared_expert_intermediate_size": 48,
            "head_dim": 16,
            "hybrid_override_pattern": "M*E-M",
            "mamba_num_heads": 6,
            "mamba_head_dim": 9,
            "ssm_state_size": 11,
            "n_groups": 2,
            "conv_kernel": 3,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {"num_heads": 16, "head_dim": 8, "state_size": 11, "n_groups": 2, "conv_kernel": 3},
    ),
}

# Architecture -> (config class, model class, what its configuration adds).
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GQA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GQA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_GQA, "head_dim": 16}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_GQA, "sliding_window": 8}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_GQA, "head_dim": 16}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _GEMMA),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    # Layers with heads of two sizes, embeddings for each layer, and a layer with another's keys.
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **_GQA,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "num_kv_shared_layers": 1,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 128,
            "tie_word_embeddings": False,
        },
    ),
    # Experts beside the MLP, and values that are the keys.
    "gemma4_moe": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        {
            **_GQA,
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_positions": 128}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {"intermediate_size": 96}),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", {"n_positions": 128}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {**_GQA, "sliding_window": 8}),
    "phi": ("PhiConfig", "PhiForCausalLM", _GQA),
    "phi_norms": ("PhiConfig", "PhiForCausalLM", {**_GQA, "qk_layernorm": True}),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", {**_GQA, "head_dim": 16}),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", {**_GQA, "head_dim": 16}),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", _GQA),
    "gpt_neox_in_turn": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        {"intermediate_size": 96, "use_parallel_residual": False},
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _GQA),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", {**_GQA, "sliding_window": 8}),
    "exaone4": (
        "Exaone4Config",
        "Exaone4ForCausalLM",
        {**_GQA, "sliding_window": 8, "sliding_window_pattern": 2},
    ),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", {**_GQA, "sliding_window": 8}),
    "opt": ("OPTConfig", "OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", _GQA),
    "stablelm_parallel": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {**_GQA, "use_parallel_residual": True},
    ),
    "stablelm_norms": (
        "StableLmConfig",
        "StableLmForCausalLM",
        {**_GQA, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM", {**_GQA, "head_dim": 16}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        {**_MOE, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1},
    ),
    "glm": ("GlmConfig", "GlmForCausalLM", {**_GQA, "head_dim": 16}),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", {**_GQA, "head_dim": 16}),
    "cohere": ("CohereConfig", "CohereForCausalLM", _GQA),
    "cohere_norms": ("CohereConfig", "CohereForCausalLM", {**_GQA, "use_qk_norm": True}),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", {**_GQA, "sliding_window": 8}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {**_GQA, **_GRANITE}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {**_GQA, "no_rope_layer_interval": 2}),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM", {**_GQA, "head_dim": 16}),
    "ministral": (
        "MinistralConfig",
        "MinistralForCausalLM",
        {**_GQA, "head_dim": 16, "sliding_window": 8},
    ),
    "cwm": ("CwmConfig", "CwmForCausalLM", {**_GQA, "head_dim": 16, "sliding_window": 8}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {**_MOE, "head_dim": 16, "sliding_window": 8},
    ),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _MOE),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**_MOE, "head_dim": 16}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {**_MOE, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1]},
    ),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", _MOE),
    "flex_olmo": ("FlexOlmoConfig", "FlexOlmoForCausalLM", _MOE),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", {**_MOE, **_GRANITE}),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        "GraniteMoeSharedForCausalLM",
        {**_MOE, **_GRANITE, "shared_intermediate_size": 48},
    ),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", {**_GROUPED, "use_qk_norm": True}),
    "dots1": ("Dots1Config", "Dots1ForCausalLM", {**_GROUPED, "sliding_window": 8}),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", {**_MOE, "head_dim": 16}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**_LATENT, **_LATENT_MOE}),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", {**_LATENT, **_LATENT_MOE}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", {**_LATENT, **_LATENT_MOE}),
    "vaultgemma": ("VaultGemmaConfig", "VaultGemmaForCausalLM", _GEMMA),
    "internlm3": ("InternLM3Config", "LlamaForCausalLM", {**_GQA, "head_dim": 16}),
    "iquestcoder": ("IQuestCoderConfig", "LlamaForCausalLM", {**_GQA, "head_dim": 16}),
    "jais2": ("Jais2Config", "Jais2ForCausalLM", {**_GQA, "head_dim": 16}),
    "solar_open": ("SolarOpenConfig", "SolarOpenForCausalLM", {**_GROUPED, "head_dim": 16}),
    "exaone_moe": (
        "ExaoneMoeConfig",
        "ExaoneMoeForCausalLM",
        {
            **_GROUPED,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "hy_v3": (
        "HYV3Config",
        "HYV3ForCausalLM",
        {**_MOE, "head_dim": 16, "num_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", _HUNYUAN),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1Config",
        "HunYuanMoEV1ForCausalLM",
        {**_MOE, **_HUNYUAN, "num_experts": 4, "moe_topk": 2},
    ),
    "ministral3": (
        "Ministral3Config",
        "Ministral3ForCausalLM",
        {**_GQA, "head_dim": 16, "rope_parameters": _LONGER_QUERIES},
    ),
    "mistral4": (
        "Mistral4Config",
        "Mistral4ForCausalLM",
        {**_LATENT, **_LATENT_MOE, "rope_parameters": _LONGER_QUERIES},
    ),
    "minicpm3": ("MiniCPM3Config", "MiniCPM3ForCausalLM", {**_LATENT, "dim_model_base": 32}),
    "youtu": ("YoutuConfig", "YoutuForCausalLM", _LATENT),
}
# transformers bounds their time steps in a prompt only: with its cache a token is another one.
DECODES_OTHERWISE = {"nemotron_h"}

# Those that the kernels for GPUs do not run: their branches begin without a norm, or are side by
# side; they rotate neighbours, or have experts, latents, another activation, norms for each head or
# queries that grow.
NOT_FUSED = {
    *("olmo2", "olmo3", "exaone4"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo", "granitemoe", "granitemoeshared"),
    *("glm4_moe", "dots1", "minimax_m2", "gpt_oss", "ernie4_5_moe"),
    *("ernie4_5", "glm", "glm4", "cohere", "cohere2", "phi", "stablelm_parallel"),
    *("phi_norms", "stablelm_norms", "cohere_norms", "arcee", "nemotron"),
    *("gpt_neox", "gpt_neox_in_turn", "gemma4", "gemma4_moe"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"),
    *("jais2", "solar_open", "exaone_moe", "hy_v3", "ministral3", "mistral4"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe"),
}
# Those that roseinfer/native runs.
COMPILED = {
    *("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt2"),
    *("phi3", "smollm3", "granite", "starcoder2", "stablelm", "seed_oss", "cwm"),
    *("gpt_bigcode", "olmo", "vaultgemma", "internlm3", "iquestcoder"),
    *NOT_FUSED,
}
# Those with a state that it runs too.
COMPILED_STATEFUL = {
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"),
    *("lfm2", "lfm2_moe", "lfm3", "granitemoehybrid", "bamba", "nemotron_h", "falcon_h1", "mamba2"),
}

# Architecture and what runs it: "compiled" where it can be; the others have one way only.
CASES = [
    *((name, "compiled") for name in sorted(COMPILED) if native.available()),
    *((name, "transformers") for name in sorted(ARCHITECTURES)),
    # Of each kind of state.
    *((name, "compiled") for name in ("qwen3_5", "lfm2", "bamba") if native.available()),
    *((name, "transformers") for name in ("qwen3_5", "falcon_h1", "lfm2")),
]


def build(architecture: str, **changes: Any) -> Any:
    config_name, model_name, extra = (ARCHITECTURES | STATEFUL)[architecture]
    return construct(config_name, model_name, **{**extra, **changes})


def construct(config_name: str, model_name: str, **extra: Any) -> Any:
    torch.manual_seed(1)
    settings = copy.deepcopy({**_BASE, **extra})  # configurations write into what they are given
    config = getattr(transformers, config_name)(**settings)
    return getattr(transformers, model_name)(config).eval()


def engine_run_by(run_by: str, model: Any, **options: Any) -> InferenceEngine:
    """An engine whose runner is "compiled" or "transformers", whatever it would choose itself;
    or "triton": our kernels, interpreted, or on a GPU where TRITON_INTERPRET=0 asks for one."""
    if run_by == "triton":
        gpu = GpuOptions(attention="triton", cuda_graphs=False)
        if os.environ.get("TRITON_INTERPRET") == "0":
            model = model.cuda()
        return InferenceEngine.from_model(model, gpu=gpu, **options)
    with pytest.MonkeyPatch.context() as patch:
        if run_by == "transformers":
            patch.setattr(library, "load", lambda: library.Loaded(None, "a test"))
        engine = InferenceEngine.from_model(model, **options)
    compiled = isinstance(engine._runner, native.NativeDecoder)
    assert compiled == (run_by == "compiled"), "not run by what was asked for"
    return engine


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """Two layers, byte vocabulary; a wide initializer keeps its logits away from ties."""
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, two special tokens, and some merged ones up to VOCAB."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(alphabet)}
    merges = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyz"] + [("t", "h")]
    special = ["<bos>", "<eos>"]
    for index, pair in enumerate(merges):
        vocab["".join(pair)] = len(alphabet) + len(special) + index
    vocab |= {name: len(alphabet) + index for index, name in enumerate(special)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    names = {"bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def prompts(*lengths: int, vocab: int = 120) -> list[list[int]]:
    """Prompts of the given lengths, all different from their first token on."""
    return [
        [(7 * i + 3 * row + 5 * row * i * i) % vocab + 3 for i in range(length)]
        for row, length in enumerate(lengths, start=1)
    ]


def reference(model: Any, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """What transformers' own greedy generate gives, past any EOS that `options` do not name."""
    before = model.config._attn_implementation
    if model.config.model_type in DECODES_OTHERWISE:
        options = {"use_cache": False, **options}
    model.set_attn_implementation("eager")
    ids = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        **{"eos_token_id": None, **options},
    )
    model.set_attn_implementation(before)
    return [int(i) for i in ids[0, len(prompt) :].tolist()]


def sample(logits: torch.Tensor, rows: Sequence[SamplingRequest]) -> list[int]:
    """What `sample_tokens` draws."""
    return [int(i) for i in sample_tokens(logits, rows).tolist()]


@contextmanager
def drawing(way: str) -> Iterator[None]:
    """As the compiled library draws, or as torch does where there is none."""
    if way == "compiled" and not native.available():
        pytest.skip("the installation could not compile the library")
    with pytest.MonkeyPatch.context() as patch:
        if way == "torch":
            patch.setattr(native, "can_sample", lambda _: False)
        yield


def long_engine() -> InferenceEngine:
    """One layer, and room for long prompts of many: for tests that ask when things are computed."""
    model = tiny_llama(num_hidden_layers=1, max_position_embeddings=2048)
    return InferenceEngine.from_model(model, kv_cache_tokens=16_384)


def forget_prefixes(engine: InferenceEngine) -> None:
    """No later request finds a part of its prompt in the cache."""
    pool = engine.cache.pool
    pool.release(pool.allocate(pool.available))


def check_left_in_order(engine: InferenceEngine) -> None:
    """No block of its cache is held or lost any more. It forgets what they hold."""
    pool = engine.cache.pool
    pool.check_integrity()
    assert pool.used == 0, "blocks were leaked"
    assert pool.states.used == 0, "states were leaked"
    forget_prefixes(engine)


def greedy(count: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": count, "ignore_eos": True, **changes})


def drain(scheduler: OnlineScheduler) -> dict[str, list[StepOutput]]:
    """Step until nothing is left; every output, by request."""
    outputs: dict[str, list[StepOutput]] = {}
    while scheduler.has_unfinished():
        for output in scheduler.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens(outputs: Sequence[StepOutput]) -> list[int]:
    """The ids of one request's outputs, which must be numbered without a gap."""
    ids: list[int] = []
    for output in outputs:
        assert not ids or output.index == outputs[0].index + len(ids)
        ids += output.token_ids
    return ids


def text(outputs: Sequence[StepOutput]) -> str:
    return "".join(output.text for output in outputs)


def texts(outputs: Sequence[StepOutput]) -> list[str]:
    """What each token of one request brought, however many came in a step."""
    brought = []
    for output in outputs:
        lengths = output.text_lengths or (len(output.text),) * len(output.token_ids)
        assert (len(lengths), sum(lengths)) == (len(output.token_ids), len(output.text))
        ends = list(accumulate(lengths))
        starts = [0, *ends][:-1]
        brought += [output.text[a:b] for a, b in zip(starts, ends, strict=True)]
    return brought


def answers(
    engine: InferenceEngine,
    asked: Sequence[Sequence[int]],
    count: int,
    *,
    max_batch_size: int = 3,
    max_step_tokens: int = 16,
) -> list[list[int]]:
    """The greedy tokens of prompts that share batches, some of which join late."""
    scheduler = OnlineScheduler(engine, max_batch_size, max_step_tokens)
    return [tokens(own) for own in run_together(scheduler, asked, [greedy(count)] * len(asked))]


def run_alone(
    engine: InferenceEngine,
    prompt: str | Sequence[int],
    params: SamplingParams,
    generated_ids: Sequence[int] = (),
) -> list[StepOutput]:
    scheduler = OnlineScheduler(engine)
    name = scheduler.add_request(prompt, params=params, generated_ids=generated_ids)
    return drain(scheduler)[name]


def run_together(
    scheduler: OnlineScheduler,
    asked: Sequence[str | Sequence[int]],
    params: Sequence[SamplingParams],
) -> list[list[StepOutput]]:
    """The outputs of each request, in the order of the prompts."""
    names = [scheduler.add_request(p, params=q) for p, q in zip(asked, params, strict=True)]
    outputs = drain(scheduler)
    return [outputs[name] for name in names]


def logits_of(engine: InferenceEngine, run: Callable[[], Any]) -> dict[str, list[torch.Tensor]]:
    """Every row of logits that was sampled during `run`, by request."""
    seen: dict[str, list[torch.Tensor]] = {}
    sample = engine.sample

    def record(logits: StepLogits) -> SampledTokens:
        for chunk, row in zip(logits.chunks, logits.values, strict=False):
            seen.setdefault(chunk.session.request_id, []).append(row.clone())
        return sample(logits)

    engine.sample = record  # type: ignore[method-assign]
    try:
        run()
    finally:
        del engine.sample
    forget_prefixes(engine)
    return seen


def first_logits(engine: InferenceEngine, max_step_tokens: int = 16) -> Tensor:
    """Those behind prompts that share steps."""
    asked, limits = prompts(9, 30, 17), {"max_batch_size": 4, "max_step_tokens": max_step_tokens}
    seen = logits_of(engine, lambda: answers(engine, asked, 1, **limits))
    return torch.cat([row.float() for rows in seen.values() for row in rows])


def logits_behind_each_token(engine: InferenceEngine, prompt: list[int], chunk: int) -> Tensor:
    """Of a prompt that is computed `chunk` tokens at a time."""
    pool, session = engine.cache.pool, engine.new_session(prompt)
    session.state.begin(pool, None)
    session.blocks += pool.allocate(-(-len(prompt) // engine.cache.block_size))
    rows = []
    while session.num_pending:
        part = Chunk(session, min(chunk, session.num_pending))
        rows.append(engine._runner.run([part], every_row=True)[1])
        session.computed += part.count
    session.release_blocks(pool)
    return torch.cat(rows)


def check_logits(found: InferenceEngine, expected: InferenceEngine, limit: float = 0.04) -> None:
    """They are the same but for activations that are rounded to 8 bits."""
    own, others = first_logits(found), first_logits(expected)
    assert ((own - others).norm(dim=-1) / others.norm(dim=-1)).mean() < limit


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_weight(form: Form, shape: tuple[int, int], seed: int = 0) -> QuantizedWeight:
    """Quantized numbers of all sizes."""
    generator = torch.Generator().manual_seed(seed)

    def whole(most: int, columns: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        least = -most if dtype is torch.int8 else 0
        size = (shape[0], columns)
        return torch.randint(least, most, size, dtype=dtype, generator=generator)

    size = WIDE_GROUP if form.wide else 256 if form.factors else 32
    groups, blocks = shape[1] // 32, shape[1] // size
    scales = torch.randn(shape[0], blocks, generator=generator) / (1 << form.bits)
    minimums = torch.randn(shape[0], blocks, generator=generator)
    if form.wide:
        scale_factors = whole(16, 2 * groups)
    else:
        scale_factors = whole(64, groups) if form.minimums else whole(128, 2 * groups, torch.int8)
    return QuantizedWeight(
        whole(1 << form.bits, shape[1]),
        (scales / 64 if form.factors else scales).half(),
        form.bits,
        (minimums / 64 if form.factors else minimums).half() if form.minimums else None,
        whole(1 << form.bits, groups) if form.zeros else None,
        scale_factors if form.factors else None,
        whole(64, groups) if form.factors and form.minimums else None,
        form.wide,
        form.codes,
    )
