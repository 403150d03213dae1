"""Small random models of every family with which transformers generates text, one after another.

    python -m tests.fuzz.families --seed 7

Each gives the same greedy tokens as transformers' own generate, or is refused in one line that says
why. What is special in its configuration is drawn: windows, rotary scaling, biases, heads, ties.
"""

import logging
import os
import random
import secrets
import sys
import warnings
from collections import Counter
from typing import Annotated, Any, NamedTuple

import torch
import transformers
import typer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rose.errors import RoseError
from roseinfer import InferenceEngine
from tests.roseinfer.models import answers, prompts, reference

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
COUNT = 10
PROMPTS = prompts(3, 20, 41)
_MOST_PARAMETERS = 5_000_000
#: A configuration may contradict itself, or give a model that repeats one token for ever.
_DRAWS = 6
_LEAST_DISTINCT = 4

_ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
)
#: What fields may be, of which a family's configuration has some.
_CHOICES: dict[str, tuple[Any, ...]] = {
    name: choices
    for names, choices in {
        "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab": (128,),
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions": (128,),
        "context_length model_max_length": (128,),
        "hidden_size n_embd d_model emb_dim embedding_dim embedding_size lru_width": (64,),
        "word_embed_proj_dim input_embedding_size output_embedding_size": (64,),
        "attention_hidden_size cross_attention_hidden_size": (64,),
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim dim_ff dff d_inner": (96,),
        "n_inner feed_forward_size ffn_hidden_size intermediate_size_mlp": (96,),
        "dense_intermediate_size prefix_dense_intermediate_size": (96,),
        "moe_intermediate_size expert_ffn_hidden_size shared_intermediate_size": (32,),
        "router_hidden_size shared_expert_intermediate_size": (32,),
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size": (32,),
        "num_hidden_layers n_layer n_layers num_layers decoder_layers": (2, 3, 4),
        "num_decoder_layers num_blocks": (2, 3, 4),
        "encoder_layers num_encoder_layers num_layers_per_stack": (2,),
        "num_attention_heads n_head n_heads num_heads attention_heads": (4,),
        "decoder_attention_heads encoder_attention_heads num_encoder_attention_heads": (4,),
        "num_decoder_attention_heads swa_num_attention_heads": (4,),
        "num_key_value_heads num_kv_heads swa_num_key_value_heads num_query_groups": (1, 2, 4),
        "head_dim swa_head_dim dim_head d_head kv_channels attention_head_dim": (16, 32),
        "qk_rope_head_dim": (8, 16),
        "qk_nope_head_dim v_head_dim rotary_dim query_pre_attn_scalar": (16,),
        "kv_lora_rank q_lora_rank o_lora_rank gated_norm_rank hc_lowrank adapter_rank": (16,),
        "num_experts num_local_experts n_routed_experts moe_num_experts": (8,),
        "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts": (1, 2),
        "n_group topk_group num_expert_group": (1,),
        "num_shared_experts n_shared_experts moe_num_shared_experts": (1,),
        "first_k_dense_replace zero_expert_num": (1,),
        "sliding_window sliding_window_size window_size attention_window_size": (4, 8, 16),
        "local_attention attention_chunk_size": (4, 8, 16),
        "index_head_dim index_n_heads index_topk indexer_head_dim d_rel laurel_rank": (16,),
        "linear_head_dim linear_key_head_dim linear_value_head_dim": (16,),
        "mamba_d_head mamba_head_dim mamba_headdim mamba_dt_rank time_step_rank": (16,),
        "hidden_size_per_layer_input ple_embed_dim": (16,),
        "mamba_d_state state_size ssm_state_size mamba_chunk_size chunk_size": (16,),
        "linear_num_heads linear_num_key_heads linear_num_value_heads": (4,),
        "mamba_n_heads mamba_num_heads": (8,),
        "mamba_d_ssm": (128,),
        "ngram_vocab_size_base": (512,),
        "num_nextn_predict_layers num_kv_shared_layers": (0,),
        "max_window_layers": (1, 2),
        "use_sliding_window tie_word_embeddings attention_bias mlp_bias use_bias": (False, True),
        "use_qk_norm qk_layernorm norm_topk_prob use_parallel_residual": (False, True),
        "parallel_attn alibi new_decoder_architecture multi_query": (False, True),
        "scale_attn_by_inverse_layer_idx": (False, True),
        "hidden_act": ("silu", "gelu_pytorch_tanh", "relu"),
        "rope_parameters": _ROPES,
        "is_decoder": (True,),
        "pad_token_id": (0,),
        "bos_token_id": (1,),
        "eos_token_id": (2,),
    }.items()
    for name in names.split()
}


class Verdict(NamedTuple):
    family: str
    word: str
    """equal, refused, not compared or not drawn, or what is wrong"""
    detail: str
    drawn: dict[str, Any]


WRONG = ("differs", "crashes", "is refused without a reason")


def check(family: str, seed: int) -> Verdict:
    draw, reason, model = random.Random(f"{family} {seed}"), "", None
    fields: dict[str, Any] = {}
    for _ in range(_DRAWS):
        try:
            fields = _drawn(CONFIG_MAPPING[family], draw)
            model = _model(CONFIG_MAPPING[family](**fields), seed)
            wanted = [reference(model, prompt, COUNT) for prompt in PROMPTS]
        except Exception as error:  # noqa: BLE001 - transformers has no class for it
            reason = f"{type(error).__name__}: {error}"
        else:
            if len(set().union(*wanted)) >= _LEAST_DISTINCT:
                return Verdict(family, *_compared(model, wanted), fields)
            reason = "it says few tokens"
    if model is None:
        return Verdict(family, "not drawn", reason, fields)
    return Verdict(family, *_compared(model, None), fields)


def _compared(model: Any, wanted: list[list[int]] | None) -> tuple[str, str]:
    """`wanted`: None where transformers itself cannot generate."""
    try:
        engine = InferenceEngine.from_model(model, kv_cache_tokens=2048)
        got = answers(engine, PROMPTS, COUNT)
    except RoseError as refusal:
        clear = "\n" not in str(refusal) and model.config.model_type in str(refusal)
        return "refused" if clear else "is refused without a reason", str(refusal)
    except Exception as error:  # noqa: BLE001 - the finding
        return "crashes", f"{type(error).__name__}: {error}"
    if wanted is None:
        return "not compared", engine.decoder_description
    if got == wanted:
        return "equal", engine.decoder_description
    return "differs", f"{engine.decoder_description}: {got} and not {wanted}"


def _drawn(kind: Any, draw: random.Random) -> dict[str, Any]:
    own: dict[str, Any] = kind().to_dict()
    inner = {
        name: _drawn(part, draw)
        for name, part in kind.sub_configs.items()
        if isinstance(own.get(name), dict) and hasattr(part, "model_type")
    }
    fields: dict[str, Any] = {}
    for name, choices in _CHOICES.items():
        choice = draw.choice(choices)
        if name in own and name not in inner and not isinstance(own[name], list):
            fields[name] = choice
    if "qk_rope_head_dim" in fields:  # is then meant
        fields.pop("head_dim", None)
    if "rope_parameters" in fields:
        if "rope_theta" in (rope := own["rope_parameters"] or {}):  # else it has several kinds
            fields["rope_parameters"] = {**rope, **fields["rope_parameters"]}
        else:
            del fields["rope_parameters"]
    return fields | inner


def _model(config: Any, seed: int) -> Any:
    """Every weight is random, those of norms and biases too, and logits are far from ties."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    if (size := sum(weight.numel() for weight in empty.parameters())) > _MOST_PARAMETERS:
        raise ValueError(f"{size} parameters are too many")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(0.3 * noise)
            else:
                weight.add_(0.1 * noise)
    return model


def main(
    draws: Annotated[int, typer.Option(min=1, help="Of each family.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Have a run again; else a new one.")] = None,
    family: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
) -> None:
    """Compare each family with transformers."""
    seed = secrets.randbits(32) if seed is None else seed
    typer.echo(f"seed {seed}", err=True)
    torch.set_num_threads(1)  # more would wait for each other, so small are these models
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    words: Counter[str] = Counter()
    for own in range(seed, seed + draws):
        for name in family or FAMILIES:
            verdict = check(name, own)
            words[verdict.word] += 1
            detail = " ".join(verdict.detail.split())
            typer.echo(f"{name:24} {verdict.word}: {detail[:200]}")
            if verdict.word in WRONG:
                typer.echo(f"    --seed {own} --family {name}: {verdict.drawn}")
    typer.echo(", ".join(f"{count} {word}" for word, count in words.most_common()))
    sys.exit(any(words[word] for word in WRONG))


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    typer.run(main)
