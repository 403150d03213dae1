"""The layouts of families by architecture, those of Mistral's and Hunyuan, and of families with a
state in some layers.

What a file does not say, such as an activation, is as llama.cpp computes it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    FalconH1Config,
    GraniteMoeHybridConfig,
    HunYuanDenseV1Config,
    Lfm2Config,
    Lfm2MoeConfig,
    Mamba2Config,
    Ministral3Config,
    MistralConfig,
    NemotronHConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf import encoders
from roseinfer.checkpoints.gguf.gemma4 import gemma4
from roseinfer.checkpoints.gguf.header import Header
from roseinfer.checkpoints.gguf.latents import deepseek2, minicpm3
from roseinfer.checkpoints.gguf.layouts import Draft, Layout, side_by_side
from roseinfer.checkpoints.gguf.parts import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    SHARED,
    SIGMOID,
    add_draft_layer,
    add_experts,
    check_rotated,
    head_size,
    is_stretched,
    layer_count,
    rope,
    sizes,
    without_one,
    yarn,
)
from roseinfer.checkpoints.transformers_messages import first_line

# llama.cpp bounds no time step.
_NO_LIMIT = (0.0, float("inf"))
_NO_LEAST_STEP = 1e-30  # transformers takes its logarithm


def find_layout(header: Header) -> Layout | None:
    """None if transformers is to read the file.

    Raises UnsupportedModel: says what of it cannot be read.
    """
    make = _LAYOUTS.get(header.architecture)
    if make is None:
        return None
    draft = Draft(header)
    try:
        return make(draft)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever numbers without a sense raise, here and in transformers
        reason = f"its sizes are those of no model ({first_line(error)})"
        raise draft.refusal(reason) from error


def _logarithm(decay: Tensor) -> Tensor:
    return torch.log(-decay).flatten()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten()


def _kernels(kernels: Tensor) -> Tensor:
    """A channel's own, of one input."""
    return kernels.unsqueeze(1)


def _row(vector: Tensor) -> Tensor:
    return vector.reshape(1, -1)


# Mistral Small 3, and Ministral 3, which makes queries longer with their positions.


def _mistral3(draft: Draft) -> Layout:
    layers, queries = draft.value("block_count"), draft.value("attention.head_count")
    keys = draft.value("attention.head_count_kv")
    head = head_size(draft)
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, NORMS)
        _paired_attention(draft, blk, f"{parameters}self_attn.", queries, keys)
        draft.rename(blk, f"{parameters}mlp.", MLP)
    draft.rename("", "", OUTSIDE)
    settings = sizes(draft) | {
        "num_hidden_layers": layers,
        "num_key_value_heads": keys,
        "head_dim": head,
        "hidden_act": "silu",
        "intermediate_size": draft.value("feed_forward_length"),
        "rms_norm_eps": draft.value("attention.layer_norm_rms_epsilon"),
        "sliding_window": None,
    }
    if not (growth := draft.get("attention.temperature_scale", 0.0)):
        return draft.finish(MistralConfig, rope_parameters=rope(draft), **settings)
    if not is_stretched(draft):
        raise draft.refusal("it has an attention.temperature_scale without YaRN")
    # llama.cpp takes the other multiplier to be 1.
    multiplier = draft.value("rope.scaling.yarn_log_multiplier")
    rotation = yarn(draft, mscale=1.0, mscale_all_dim=multiplier, llama_4_scaling_beta=growth)
    return draft.finish(Ministral3Config, rope_parameters=rotation, **settings)


# Hunyuan V1.


def _hunyuan(draft: Draft) -> Layout:
    """The converter writes the base of the rotation as it is used, multiplied."""
    layers, head = draft.value("block_count"), head_size(draft)
    for key in ("expert_count", "expert_used_count"):  # earlier files have one
        if (count := draft.get(key, 0)) > 1:
            raise draft.refusal(f"its {key} is {count}, and dense ones are read")
    norms = {"attn_q_norm": "query_layernorm", "attn_k_norm": "key_layernorm"}
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, NORMS)
        draft.rename(blk, f"{parameters}self_attn.", ATTENTION | norms)
        draft.rename(blk, f"{parameters}mlp.", MLP)
    draft.rename("", "", OUTSIDE)
    return draft.finish(
        HunYuanDenseV1Config,
        num_hidden_layers=layers,
        num_key_value_heads=draft.value("attention.head_count_kv"),
        head_dim=head,
        hidden_act="silu",
        attention_bias=draft.has_any("attn_q.bias"),
        intermediate_size=draft.value("feed_forward_length"),
        rms_norm_eps=draft.value("attention.layer_norm_rms_epsilon"),
        rope_parameters=rope(draft),
        **sizes(draft),
    )


def _leave_unrotated(draft: Draft) -> None:
    """Its attention knows no positions, whatever the file says of them."""
    for unused in ("rope.freq_base", "rope.dimension_count"):
        draft.get(unused)


# Gated delta nets: Qwen 3 Next, 3.5 and 3.6.


def _qwen(draft: Draft, architecture: str) -> Layout:
    head = draft.value("attention.key_length")
    keys, values = draft.value("ssm.group_count"), draft.value("ssm.time_step_rank")
    layers = layer_count(draft)
    key_size, value_size = draft.value("ssm.state_size"), draft.value("ssm.inner_size") // values
    interval = draft.get("full_attention_interval", 4)
    recurrent = [bool((layer + 1) % interval) for layer in range(layers)]
    if draft.get("attention.recurrent_layers") is not None:
        recurrent = draft.each("attention.recurrent_layers", layers)
    is_mixture = architecture != "qwen35"
    tiled = architecture != "qwen3next"
    for layer in range(draft.value("block_count")):  # with those for further tokens
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        norms = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
        draft.rename(blk, parameters, norms, make=without_one)
        attention = f"{parameters}self_attn."
        draft.rename(blk, attention, ATTENTION)
        draft.rename(
            blk, attention, {"attn_q_norm": "q_norm", "attn_k_norm": "k_norm"}, make=without_one
        )
        _delta_net(
            draft, blk, f"{parameters}linear_attn.", (keys, values, key_size, value_size), tiled
        )
        mlp = f"{parameters}mlp."
        if is_mixture:
            draft.rename(blk, f"{mlp}shared_expert.", SHARED)
            draft.rename(blk, mlp, {"ffn_gate_inp": "gate"})
            draft.add(
                f"{mlp}shared_expert_gate.weight", f"{blk}ffn_gate_inp_shexp.weight", make=_row
            )
            add_experts(draft, blk, mlp)
        else:
            draft.rename(blk, mlp, MLP)
        if layer >= layers:
            add_draft_layer(draft, layer, make=without_one)
    draft.rename("", "", {"token_embd": "model.embed_tokens", "output": "lm_head"})
    draft.rename("", "", {"output_norm": "model.norm"}, make=without_one)
    settings = sizes(draft) | {
        "num_hidden_layers": layers,
        "num_key_value_heads": draft.value("attention.head_count_kv"),
        "head_dim": head,
        "hidden_act": "silu",
        "attention_bias": draft.has_any("attn_q.bias"),
        "rms_norm_eps": draft.value("attention.layer_norm_rms_epsilon"),
        "layer_types": [
            "linear_attention" if is_recurrent else "full_attention" for is_recurrent in recurrent
        ],
        "linear_conv_kernel_dim": draft.value("ssm.conv_kernel"),
        "linear_key_head_dim": key_size,
        "linear_value_head_dim": value_size,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "rope_parameters": rope(
            draft, partial_rotary_factor=draft.value("rope.dimension_count") / head
        ),
    }
    if tiled:  # of a text all of them are the same position
        draft.value("rope.dimension_sections")
    if not is_mixture:
        settings["intermediate_size"] = draft.value("feed_forward_length")
        return draft.finish(Qwen3_5TextConfig, **settings)
    draft.get("feed_forward_length")  # of layers without experts, of which there are none
    settings |= {
        "num_experts": draft.value("expert_count"),
        "num_experts_per_tok": draft.value("expert_used_count"),
        "moe_intermediate_size": draft.value("expert_feed_forward_length"),
        "shared_expert_intermediate_size": draft.value("expert_shared_feed_forward_length"),
    }
    if tiled:
        return draft.finish(Qwen3_5MoeTextConfig, **settings)
    settings |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return draft.finish(Qwen3NextConfig, **settings)


def _delta_net(
    draft: Draft, blk: str, net: str, heads: tuple[int, int, int, int], tiled: bool
) -> None:
    """Where several heads of values share one of keys, Qwen 3.5's files have those that are first
    of each before those that are second; the model has those of one together. Qwen 3 Next's model
    has queries, keys, values and gates of one head of keys together."""
    keys, values, key_size, value_size = heads
    shared = values // keys
    behind = 2 * keys * key_size

    def together(rows: Tensor, size: int) -> Tensor:
        if not tiled or shared == 1:
            return rows
        heads = rows.reshape(shared, keys, size, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    def last_together(rows: Tensor) -> Tensor:
        return torch.cat([rows[:behind], together(rows[behind:], value_size)])

    def columns_together(weight: Tensor) -> Tensor:
        return together(weight.T, value_size).T

    def by_keys(qkv: Tensor, gates: Tensor) -> Tensor:
        parts = [*torch.tensor_split(qkv, [behind // 2, behind]), gates]
        by_key = [part.reshape(keys, -1, part.shape[-1]) for part in parts]
        return torch.cat(by_key, dim=1).flatten(0, 1)

    by_head = partial(together, size=1)
    draft.add(f"{net}A_log", f"{blk}ssm_a", make=lambda decay: by_head(_logarithm(decay)))
    draft.add(f"{net}dt_bias", f"{blk}ssm_dt.bias", make=by_head)
    draft.add(
        f"{net}conv1d.weight",
        f"{blk}ssm_conv1d.weight",
        make=lambda kernels: _kernels(last_together(kernels)),
    )
    draft.rename(blk, net, {"ssm_norm": "norm"})
    if tiled:
        draft.rename(blk, net, {"attn_qkv": "in_proj_qkv"}, make=last_together)
        draft.rename(blk, net, {"attn_gate": "in_proj_z"}, make=partial(together, size=value_size))
        draft.rename(blk, net, {"ssm_alpha": "in_proj_a", "ssm_beta": "in_proj_b"}, make=by_head)
        draft.rename(
            blk, net, {"ssm_out": "out_proj"}, make=columns_together, moves_rows=shared == 1
        )
        return
    draft.rename(blk, net, {"ssm_in": "in_proj_qkvz", "ssm_ba": "in_proj_ba"})
    draft.add(
        f"{net}in_proj_qkvz.weight",
        f"{blk}attn_qkv.weight",
        f"{blk}attn_gate.weight",
        make=by_keys,
    )
    draft.rename(blk, net, {"ssm_out": "out_proj"})


# Short convolutions: LFM 2.


def _lfm2(draft: Draft, is_mixture: bool) -> Layout:
    layers = draft.value("block_count")
    heads = draft.each("attention.head_count_kv", layers)
    attention = ATTENTION | {"attn_output": "out_proj"}
    norms = {"attn_q_norm": "q_layernorm", "attn_k_norm": "k_layernorm"}
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, {"attn_norm": "operator_norm", "ffn_norm": "ffn_norm"})
        draft.rename(blk, f"{parameters}self_attn.", attention | norms)
        draft.rename(
            f"{blk}shortconv.",
            f"{parameters}conv.",
            {"in_proj": "in_proj", "out_proj": "out_proj"},
        )
        kernels = f"{parameters}conv.conv."
        draft.add(f"{kernels}weight", f"{blk}shortconv.conv.weight", make=_kernels)
        draft.add(f"{kernels}bias", f"{blk}shortconv.conv.bias")
        mlp = f"{parameters}feed_forward."
        draft.rename(blk, mlp, {"ffn_gate": "w1", "ffn_up": "w3", "ffn_down": "w2"})
        draft.rename(blk, mlp, {"ffn_gate_inp": "gate"})
        draft.add(f"{mlp}expert_bias", f"{blk}exp_probs_b.bias")
        add_experts(draft, blk, mlp)
    draft.rename(
        "",
        "",
        {
            "token_embd": "model.embed_tokens",
            "token_embd_norm": "model.embedding_norm",
            "output": "lm_head",
        },
    )
    check_rotated(draft, draft.value("embedding_length") // draft.value("attention.head_count"))
    settings = sizes(draft) | {
        "num_hidden_layers": layers,
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "intermediate_size": draft.value("feed_forward_length"),
        "norm_eps": draft.value("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": draft.value("shortconv.l_cache"),
        "conv_bias": draft.has_any("shortconv.in_proj.bias"),
        "rope_parameters": rope(draft),
    }
    if not is_mixture:
        return draft.finish(Lfm2Config, block_auto_adjust_ff_dim=False, **settings)
    if (gating := draft.value("expert_gating_func")) != SIGMOID:
        raise draft.refusal(f"its expert_gating_func is {gating}, and {SIGMOID} is read")
    return draft.finish(
        Lfm2MoeConfig,
        num_dense_layers=draft.value("leading_dense_block_count"),
        num_experts=draft.value("expert_count"),
        num_experts_per_tok=draft.value("expert_used_count"),
        moe_intermediate_size=draft.value("expert_feed_forward_length"),
        use_expert_bias=draft.has_any("exp_probs_b.bias"),
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        **settings,
    )


# Mamba 2: Granite 4, Falcon H1, Nemotron H, and Mamba 2 itself.


def _mamba2(draft: Draft, blk: str, mixer: str) -> None:
    draft.rename(blk, mixer, {"ssm_in": "in_proj", "ssm_out": "out_proj"})
    draft.add(f"{mixer}conv1d.weight", f"{blk}ssm_conv1d.weight", make=_kernels)
    draft.add(f"{mixer}conv1d.bias", f"{blk}ssm_conv1d.bias")
    draft.add(f"{mixer}A_log", f"{blk}ssm_a", make=_logarithm)
    draft.add(f"{mixer}D", f"{blk}ssm_d", make=_flat)
    draft.add(f"{mixer}dt_bias", f"{blk}ssm_dt.bias")
    draft.add(f"{mixer}norm.weight", f"{blk}ssm_norm.weight", make=_flat)


def _halves(heads: int) -> Callable[[Tensor], Tensor]:
    """llama.cpp pairs neighbours; what is rotated together lies in two halves of a head here."""

    def apart(rows: Tensor) -> Tensor:
        pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
        return pairs.transpose(1, 2).reshape(rows.shape)

    return apart


def _paired_attention(draft: Draft, blk: str, attention: str, queries: int, keys: int) -> None:
    draft.rename(blk, attention, {"attn_v": "v_proj", "attn_output": "o_proj"})
    draft.rename(blk, attention, {"attn_q": "q_proj"}, make=_halves(queries))
    draft.rename(blk, attention, {"attn_k": "k_proj"}, make=_halves(keys))


def _mamba2_sizes(draft: Draft) -> dict[str, Any]:
    """As Granite 4 and Falcon H1 call them."""
    heads = draft.value("ssm.time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": draft.value("ssm.inner_size") // heads,
        "mamba_n_groups": draft.value("ssm.group_count"),
        "mamba_d_state": draft.value("ssm.state_size"),
        "mamba_d_conv": draft.value("ssm.conv_kernel"),
        "mamba_conv_bias": draft.has_any("ssm_conv1d.bias"),
        "mamba_proj_bias": draft.has_any("ssm_in.bias"),
        "time_step_limit": _NO_LIMIT,
    }


def _granite(draft: Draft) -> Layout:
    layers = draft.value("block_count")
    heads = draft.each("attention.head_count_kv", layers)
    queries = draft.value("attention.head_count")
    if draft.get("rope.scaling.finetuned", True):
        raise draft.refusal("rope.scaling.finetuned says that it is a Bamba, which is not read")
    experts = draft.get("expert_count", 0)
    width = draft.value("embedding_length")
    _leave_unrotated(draft)
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, NORMS)
        _paired_attention(draft, blk, f"{parameters}self_attn.", queries, heads[layer] or 1)
        _mamba2(draft, blk, f"{parameters}mamba.")
        mixture, shared = f"{parameters}block_sparse_moe.", f"{parameters}shared_mlp."
        draft.rename(blk, mixture, {"ffn_gate_inp": "router"})
        add_experts(draft, blk, mixture)
        ending = "_shexp.weight" if experts else ".weight"
        gate, up, down = (f"{blk}ffn_{name}{ending}" for name in ("gate", "up", "down"))
        draft.add(f"{shared}input_linear.weight", gate, up, make=side_by_side)
        draft.add(f"{shared}output_linear.weight", down)
    draft.rename("", "", OUTSIDE)
    feed_forward = draft.value("feed_forward_length")
    shared_size = draft.get("expert_shared_feed_forward_length", 0 if experts else feed_forward)
    return draft.finish(
        GraniteMoeHybridConfig,
        num_hidden_layers=layers,
        num_key_value_heads=max(heads),
        layer_types=["full_attention" if count else "linear_attention" for count in heads],
        hidden_act="silu",
        attention_bias=draft.has_any("attn_q.bias"),
        rms_norm_eps=draft.value("attention.layer_norm_rms_epsilon"),
        position_embedding_type=None,
        intermediate_size=feed_forward,
        num_local_experts=experts,
        num_experts_per_tok=draft.get("expert_used_count", 0),
        shared_intermediate_size=shared_size,
        embedding_multiplier=draft.get("embedding_scale", 1.0),
        residual_multiplier=draft.get("residual_scale", 1.0),
        logits_scaling=draft.get("logit_scale", 1.0),
        attention_multiplier=draft.get("attention.scale", (width // queries) ** -0.5),
        mamba_expand=draft.value("ssm.inner_size") // width,
        **_mamba2_sizes(draft),
        **sizes(draft),
    )


def _falcon_h1(draft: Draft) -> Layout:
    """The converter multiplies the weights by what the model has as multipliers."""
    layers, head = draft.value("block_count"), draft.value("attention.key_length")
    check_rotated(draft, head)
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, {"attn_norm": "input_layernorm"})
        norm = f"{parameters}pre_ff_layernorm.weight"
        draft.add(norm, f"{blk}ffn_norm")
        draft.add(norm, f"{blk}ffn_norm.weight")
        draft.rename(blk, f"{parameters}self_attn.", ATTENTION)
        draft.rename(blk, f"{parameters}feed_forward.", MLP)
        _mamba2(draft, blk, f"{parameters}mamba.")
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.final_layernorm",
        "output": "lm_head",
    }
    draft.rename("", "", names)
    return draft.finish(
        FalconH1Config,
        num_hidden_layers=layers,
        num_key_value_heads=draft.value("attention.head_count_kv"),
        head_dim=head,
        intermediate_size=draft.value("feed_forward_length"),
        hidden_act="silu",
        attention_bias=draft.has_any("attn_q.bias"),
        mlp_bias=draft.has_any("ffn_up.bias"),
        projectors_bias=draft.has_any("ssm_out.bias"),
        rms_norm_eps=draft.value("attention.layer_norm_rms_epsilon"),
        rope_parameters=rope(draft),
        mamba_d_ssm=draft.value("ssm.inner_size"),
        mamba_rms_norm=draft.has_any("ssm_norm.weight"),
        mamba_norm_before_gate=False,
        **_mamba2_sizes(draft),
        **sizes(draft),
    )


def _nemotron_h(draft: Draft) -> Layout:
    layers = layer_count(draft)
    heads = draft.each("attention.head_count_kv", layers)
    widths = draft.each("feed_forward_length", layers)
    experts = draft.get("expert_count", 0)
    queries = draft.value("attention.head_count")
    if isinstance(queries, list):
        queries = max(queries)
    if (groups := draft.get("expert_group_count", 1)) > 1:
        raise draft.refusal(f"its expert_group_count is {groups}, and 1 is read")
    draft.get("expert_group_used_count")
    _leave_unrotated(draft)
    types = []
    for layer, (count, width) in enumerate(zip(heads, widths, strict=True)):
        blk, parameters = f"blk.{layer}.", f"model.layers.{layer}."
        draft.rename(blk, parameters, {"attn_norm": "norm"})
        mixer = f"{parameters}mixer."
        if count:
            types.append("full_attention")
            _paired_attention(draft, blk, mixer, queries, count)
        elif not width:
            types.append("linear_attention")
            _mamba2(draft, blk, mixer)
        elif not experts:
            types.append("mlp")
            draft.rename(blk, mixer, {"ffn_up": "up_proj", "ffn_down": "down_proj"})
        else:
            types.append("moe")
            shared = {"ffn_up_shexp": "up_proj", "ffn_down_shexp": "down_proj"}
            draft.rename(blk, f"{mixer}shared_experts.", shared)
            draft.rename(blk, mixer, {"ffn_gate_inp": "gate"})
            draft.add(f"{mixer}gate.e_score_correction_bias", f"{blk}exp_probs_b.bias")
            draft.add(f"{mixer}experts.up_proj", f"{blk}ffn_up_exps.weight")
            draft.add(f"{mixer}experts.down_proj", f"{blk}ffn_down_exps.weight")
    names = {"token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head"}
    draft.rename("", "", names)
    settings = sizes(draft) | {"num_attention_heads": queries}
    if experts:
        settings |= {
            "n_routed_experts": experts,
            "num_experts_per_tok": draft.value("expert_used_count"),
            "n_shared_experts": draft.value("expert_shared_count"),
            "moe_intermediate_size": draft.value("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": draft.value("expert_shared_feed_forward_length"),
            "norm_topk_prob": draft.value("expert_weights_norm"),
            "routed_scaling_factor": draft.value("expert_weights_scale"),
            "moe_latent_size": None,
            "n_group": 1,
            "topk_group": 1,
        }
    mamba_heads = draft.value("ssm.time_step_rank")
    return draft.finish(
        NemotronHConfig,
        layers_block_type=types,
        num_key_value_heads=max(heads) or queries,
        head_dim=draft.value("attention.key_length"),
        intermediate_size=max(widths),
        mlp_hidden_act="relu2",
        mamba_hidden_act="silu",
        attention_bias=draft.has_any("attn_q.bias"),
        mlp_bias=draft.has_any("ffn_up.bias"),
        layer_norm_epsilon=draft.value("attention.layer_norm_rms_epsilon"),
        mamba_num_heads=mamba_heads,
        mamba_head_dim=draft.value("ssm.inner_size") // mamba_heads,
        n_groups=draft.value("ssm.group_count"),
        ssm_state_size=draft.value("ssm.state_size"),
        conv_kernel=draft.value("ssm.conv_kernel"),
        use_conv_bias=draft.has_any("ssm_conv1d.bias"),
        mamba_proj_bias=draft.has_any("ssm_in.bias"),
        use_bias=draft.has_any("ssm_in.bias"),
        time_step_min=_NO_LEAST_STEP,
        **settings,
    )


def _plain_mamba2(draft: Draft) -> Layout:
    """It names no context: llama.cpp's converter writes one of its own."""
    layers = draft.value("block_count")
    for unused in ("context_length", "feed_forward_length", "attention.head_count"):
        draft.get(unused)
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"backbone.layers.{layer}."
        draft.rename(blk, parameters, {"attn_norm": "norm"})
        _mamba2(draft, blk, f"{parameters}mixer.")
    names = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"}
    draft.rename("", "", names | {"output": "lm_head"})
    inner, heads = draft.value("ssm.inner_size"), draft.value("ssm.time_step_rank")
    width = draft.value("embedding_length")
    return draft.finish(
        Mamba2Config,
        num_hidden_layers=layers,
        hidden_size=width,
        expand=inner // width,
        num_heads=heads,
        head_dim=inner // heads,
        n_groups=draft.value("ssm.group_count"),
        state_size=draft.value("ssm.state_size"),
        conv_kernel=draft.value("ssm.conv_kernel"),
        use_conv_bias=draft.has_any("ssm_conv1d.bias"),
        use_bias=draft.has_any("ssm_in.bias"),
        layer_norm_epsilon=draft.value("attention.layer_norm_rms_epsilon"),
        hidden_act="silu",
        time_step_limit=_NO_LIMIT,
    )


_LAYOUTS: dict[str, Callable[[Draft], Layout]] = {
    "qwen3next": partial(_qwen, architecture="qwen3next"),
    "qwen35": partial(_qwen, architecture="qwen35"),
    "qwen35moe": partial(_qwen, architecture="qwen35moe"),
    "lfm2": partial(_lfm2, is_mixture=False),
    "lfm2moe": partial(_lfm2, is_mixture=True),
    "granitehybrid": _granite,
    "falcon-h1": _falcon_h1,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "mamba2": _plain_mamba2,
    "mistral3": _mistral3,
    "hunyuan-dense": _hunyuan,
    "deepseek2": deepseek2,
    "minicpm3": minicpm3,
    "gemma4": gemma4,
    "bert": encoders.bert,
    "nomic-bert": encoders.nomic_bert,
    "gemma-embedding": encoders.gemma_embedding,
}
