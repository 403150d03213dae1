"""The layers of encoders in transformers' models of the common families.

As of decoders, nothing is taken on trust: what is computed with them is compared with the model's
own hidden states.
"""

from typing import Any

from torch import nn

from roseinfer.model.families import (
    ACTIVATIONS,
    Angles,
    LayerParts,
    Stack,
    activation_name,
    angles_of,
    find_stack,
    norm_part,
)
from roseinfer.model.limits import text_config
from roseinfer.model.linears import children, mlp_linears


def find_layers_of(model: Any, attention: list[nn.Module]) -> tuple[nn.Module, str] | None:
    """The module, and the name in it, of the list of layers each of which has one of `attention`;
    None if there is no such list."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == len(attention):
                pairs = zip(child, attention, strict=True)
                if all(any(own is one for own in layer.modules()) for layer, one in pairs):
                    return parent, name
    return None


def encoder_stack(model: Any, layers: nn.ModuleList) -> Stack | None:
    """The parts of `layers`, which are those of `model`; None if its family is not among the common
    ones, or this one of it is unusual."""
    stack = find_stack(model) or _stack(model, layers)
    if stack is None or not _is_usual(model, stack):
        return None
    return stack


def _stack(model: Any, layers: nn.ModuleList) -> Stack | None:
    config = text_config(model)
    find = next((find for name, find in _KINDS.items() if _has(layers[0], name)), None)
    activation = activation_name(config)
    if find is None or activation not in ACTIVATIONS:
        return None
    parts = [find(layer) for layer in layers]
    mlp = getattr(layers[0], "mlp", None)
    return Stack(
        layers=parts,
        activation=ACTIVATIONS[activation],
        gated=len(parts[0].gate_up) == 2 or hasattr(mlp, "Wi"),
        norms_sums=parts[0].after_mlp is not None,
        angles=_angles(model, config),
    )


def _angles(model: Any, config: Any) -> Angles | None:
    rotary = [one for one in model.modules() if type(one).__name__.endswith("RotaryEmbedding")]
    return angles_of(rotary[0], config.model_type) if rotary else None


def _has(layer: Any, name: str) -> bool:
    try:
        layer.get_submodule(name)
    except AttributeError:
        return False
    return True


def _bert(layer: Any) -> LayerParts:
    """Also RoBERTa's, XLM-R's, Electra's."""
    own, behind = layer.attention.self, layer.attention.output
    return LayerParts(
        qkv=[own.query, own.key, own.value],
        output=behind.dense,
        gate_up=[layer.intermediate.dense],
        down=layer.output.dense,
        before_attention=None,
        after_attention=norm_part(behind.LayerNorm),
        before_mlp=None,
        after_mlp=norm_part(layer.output.LayerNorm),
    )


def _distilbert(layer: Any) -> LayerParts:
    own = layer.attention
    return LayerParts(
        qkv=[own.q_lin, own.k_lin, own.v_lin],
        output=own.out_lin,
        gate_up=[layer.ffn.lin1],
        down=layer.ffn.lin2,
        before_attention=None,
        after_attention=norm_part(layer.sa_layer_norm),
        before_mlp=None,
        after_mlp=norm_part(layer.output_layer_norm),
    )


def _nomic(layer: Any) -> LayerParts:
    """Also GTE's and Jina's."""
    own = layer.self_attn
    gate_up, down = mlp_linears(layer.mlp)
    return LayerParts(
        qkv=children(own, ("q_proj", "k_proj", "v_proj")),
        output=own.o_proj,
        gate_up=gate_up,
        down=down,
        before_attention=None,
        after_attention=norm_part(layer.post_attention_layernorm),
        before_mlp=None,
        after_mlp=norm_part(layer.post_mlp_layernorm),
    )


def _modernbert(layer: Any) -> LayerParts:
    before = layer.attn_norm
    return LayerParts(
        qkv=[layer.attn.Wqkv],
        output=layer.attn.Wo,
        gate_up=[layer.mlp.Wi],
        down=layer.mlp.Wo,
        before_attention=None if isinstance(before, nn.Identity) else norm_part(before),
        before_mlp=norm_part(layer.mlp_norm),
        layer_type=layer.attention_type,
    )


#: By a module that nothing else has.
_KINDS = {
    "attention.output.LayerNorm": _bert,
    "sa_layer_norm": _distilbert,
    "post_mlp_layernorm": _nomic,
    "attn.Wqkv": _modernbert,
}


def _is_usual(model: Any, stack: Stack) -> bool:
    return (
        stack.is_plain(model)
        and not stack.mixers
        and len(stack.epsilons) == 1
        and all(layer.kv_layer is None for layer in stack.layers)
    )
