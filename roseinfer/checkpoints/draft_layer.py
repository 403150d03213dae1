"""A checkpoint's layer for further tokens, which transformers' models leave out.

It is stored in one of two ways. N is the number of the model's own layers:

    Qwen         mtp.layers.0.*     mtp.fc                   mtp.pre_fc_norm_embedding
                                    mtp.pre_fc_norm_hidden   mtp.norm
    DeepSeek,    model.layers.N.*   .eh_proj                 .enorm
    GLM                             .hnorm                   .shared_head.norm

It is loaded as a model of one layer, with the embedding and the head of the other one.
"""

import copy
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rose.errors import ConfigurationError
from rose.memory import gigabytes
from roseinfer.checkpoints.lazy_tensor import LazyTensor
from roseinfer.checkpoints.transformers_messages import first_line, quiet
from roseinfer.devices.main_memory import free_memory
from roseinfer.model.attention import IMPLEMENTATION
from roseinfer.model.limits import text_config

_logger = logging.getLogger(__name__)

Stored = Mapping[str, Tensor | LazyTensor]

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_OTHERS = {
    "fc.weight": "projection",
    "eh_proj.weight": "projection",
    "pre_fc_norm_embedding.weight": "embedding",
    "enorm.weight": "embedding",
    "pre_fc_norm_hidden.weight": "hidden",
    "hnorm.weight": "hidden",
    "norm.weight": "norm",
    "shared_head.norm.weight": "norm",
}
#: Copies of the model's own.
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """The layer as a model of its own, and what makes its inputs: `projection` [hidden, 2 * hidden]
    of a token's embedding and of hidden states, each through its norm."""

    model: Any
    projection: nn.Linear
    embedding: nn.Module
    hidden: nn.Module


def load_draft_layer(model: Any, tensors: Stored) -> DraftLayer | None:
    """That of the checkpoint from which `model` came, with these tensors, of which only the layer's
    are read; None if it has none, or one of a kind that is not known: the log says so."""
    stored = _find(tensors, getattr(text_config(model), "num_hidden_layers", None))
    if not stored:
        return None
    try:
        _check_memory([tensors[name] for name in stored], model.dtype)
        return _load(model, stored, tensors)
    except Exception as error:  # noqa: BLE001 - whatever transformers raises: the model does without
        _logger.warning("no drafts of the model's own: its layer for them: %s", first_line(error))
        return None


def _check_memory(tensors: Iterable[Tensor | LazyTensor], dtype: torch.dtype) -> None:
    size, free = sum(tensor.numel() for tensor in tensors) * dtype.itemsize, free_memory()
    if size > free:
        raise ConfigurationError(
            f"it needs {gigabytes(size)} of memory, {gigabytes(free)} are free"
        )


def _find(names: Iterable[str], layers: int | None) -> dict[str, str]:
    """The names of the first such layer's tensors, without what tells it from others."""
    of_layer = re.compile(rf"(?:model\.)?(?:mtp\.layers\.0|layers\.{layers})\.(.+)")
    beside = re.compile(r"(?:model\.)?mtp\.((?!layers\.).+)")
    matches = {name: of_layer.fullmatch(name) or beside.fullmatch(name) for name in names}
    found = {name: match[1] for name, match in matches.items() if match}
    return found if "projection" in map(_OTHERS.get, found.values()) else {}


def _load(model: Any, stored: Mapping[str, str], tensors: Stored) -> DraftLayer:
    state, others = dict[str, Tensor | LazyTensor](), dict[str, Tensor]()
    for name, short in stored.items():
        if short in _OTHERS:
            others[_OTHERS[short]] = tensors[name][...]
        elif short not in _COPIES:
            state[f"model.layers.0.{short}"] = tensors[name]
    missing = {"projection", "embedding", "hidden", "norm"} - others.keys()
    if missing:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    own = model.state_dict()
    state |= {name: own[name] for name in (_HEAD, _EMBEDDING) if name in own}
    state["model.norm.weight"] = others["norm"]
    with quiet():
        layer, info = type(model).from_pretrained(
            None,
            config=config_of_one(model.config),
            state_dict=state,
            dtype=model.dtype,
            attn_implementation=IMPLEMENTATION,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below
        )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(what):
            raise ValueError(f"{what.replace('_', ' ')}: {min(info[what])}")
    layer.model.embed_tokens, layer.lm_head = model.model.embed_tokens, model.lm_head
    projection = others["projection"].to(model.dtype)
    outputs, inputs = projection.shape
    linear = nn.Linear(inputs, outputs, bias=False, device="meta")
    linear.weight = nn.Parameter(projection, requires_grad=False)
    norms = (_norm(layer.model.norm, others[name]) for name in ("embedding", "hidden"))
    return DraftLayer(layer.eval(), linear, *norms)


def _norm(like: nn.Module, weight: Tensor) -> nn.Module:
    norm = copy.deepcopy(like)
    (own,) = norm.parameters()
    norm.weight = nn.Parameter(weight.to(own.dtype), requires_grad=False)
    return norm


def config_of_one(config: Any) -> Any:
    """That of a model which has such a layer only: it attends to all, and has experts if the model
    has any."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = 1
    for name, value in (
        ("layer_types", ["full_attention"]),
        ("mlp_layer_types", ["sparse"]),
        ("first_k_dense_replace", 0),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
    ):
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    return config
