"""The keys of a GGUF file that are read, and those that may be passed over; all others are refused.

Whatever a key says of how the model computes must be in the model. So what is neither read nor
known to mean nothing is refused by its name, however unlikely that it matters.
"""

import math
import re
from collections.abc import Collection
from typing import Any

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.gguf.header import Header

#: Where a file is from and what it is called, and parameters that its authors recommend.
_DOCUMENTATION = re.compile(
    r"general\.(architecture|type|alignment|file_type|name|author|version|organization|finetune"
    r"|basename|description|quantized_by|size_label|license(\.name|\.link)?|url|doi|uuid|repo_url"
    r"|source\.\w+(\.\w+)*|base_model\.\w+(\.\w+)*|dataset\.\w+(\.\w+)*|datasets|tags|languages"
    r"|sampling\.\w+)|split\.(no|count|tensors\.count)|quantize\.imatrix\.\w+|mradermacher\.\w+"
)

#: By which of its names a configuration has what a key of the architecture says.
_READ = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "vocab_size": ("vocab_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "norm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_gating_func": ("scoring_func",),
}

#: Without them a model would have what transformers' class has by default. Each line: one of them.
_REQUIRED = (
    ("context_length",),
    ("embedding_length",),
    ("block_count",),
    ("feed_forward_length", "expert_feed_forward_length"),
    ("attention.head_count",),
    ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
)

#: Read, and checked in a way of their own.
_CHECKED = (
    *("attention.sliding_window", "rope.freq_base", "rope.dimension_count"),
    "pooling_type",  # it says that the model embeds, see roseinfer.encoders.model_files
)

#: Which values change nothing, of keys that nobody reads.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (1,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "use_parallel_residual": (False,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "tensor_data_layout": ("Meta AI original pth",),
}

#: How the model was trained, which says something only where a scaling makes use of it, and what
#: the numbers are called that it gives.
_UNUSED = (
    *("rope.scaling.finetuned", "rope.scaling.original_context_length"),
    "classifier.output_labels",
)

_GATING: dict[Any, str] = {0: "none", 1: "softmax", 2: "sigmoid"}

_TOKENIZER = "tokenizer.ggml."
_TOKENIZER_READ = {
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "unknown_token_id",
    "padding_token_id",
    "add_bos_token",
    "add_eos_token",
    "add_space_prefix",
}
#: Of encoders' tokenizers, which are made here.
_ENCODERS_READ = {
    *_TOKENIZER_READ,
    *("cls_token_id", "separator_token_id", "seperator_token_id", "precompiled_charsmap"),
    *("remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents"),
    *("add_sep_token", "token_type_count"),
}
#: Names of tokens for other tasks than to go on with a text.
_TOKENIZER_UNUSED = re.compile(
    r"(seperator|separator|cls|mask|prefix|suffix|middle|fim_\w+)_token_id|token_type_count"
)
_TOKENIZER_NEUTRAL = ("add_sep_token", "remove_extra_whitespaces")
_TEMPLATE = re.compile(r"tokenizer\.chat_template(s|\.\w+)?|tokenizer\.huggingface\.json")

_NO_TOKEN = 2**32 - 1  # -1 without its sign
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def check_keys(header: Header, config: Any, read: Collection[str] = ()) -> None:
    """Raises UnsupportedModel unless `config` has what the file says of its architecture. It has
    what is `read`."""
    own = f"{header.architecture}."
    if not read:
        _check_required(header, config)
    for key in (*header.metadata, *header.counts):
        if key.startswith(own) and key.removeprefix(own) in read:
            continue
        if key.startswith(own):
            _check_own(header, config, key, key.removeprefix(own), () if read else _CHECKED)
        elif key == "general.quantization_version":
            if (version := header.metadata.get(key)) != 2:
                raise refused(header, key, version, "blocks of another version are not read")
        elif not key.startswith("tokenizer.") and _DOCUMENTATION.fullmatch(key) is None:
            raise refused(header, key, _shown(header, key), "nothing here reads it")


def check_tokenizer_keys(header: Header, *, encoder: bool = False) -> None:
    """Raises UnsupportedModel for what the tokenizer of the file has beside what is read."""
    read = _ENCODERS_READ if encoder else _TOKENIZER_READ
    for key in (*header.metadata, *header.counts):
        if not key.startswith("tokenizer.") or _TEMPLATE.fullmatch(key):
            continue
        name = key.removeprefix(_TOKENIZER)
        if name in read or _TOKENIZER_UNUSED.fullmatch(name):
            continue
        if name in _TOKENIZER_NEUTRAL and header.metadata.get(key) is False:
            continue
        raise refused(header, key, _shown(header, key), "no tokenizer here does that")
    tokens = header.counts.get(f"{_TOKENIZER}tokens", 0)
    for name in ("token_type", "scores"):
        key = f"{_TOKENIZER}{name}"
        if header.counts.get(key, tokens) != tokens:
            raise refused(header, key, _shown(header, key), f"there are {tokens} tokens")


def ends_of_text(header: Header) -> list[int]:
    """The ids that end a text: of the text, of a turn and of a message."""
    ids = {name: header.metadata.get(f"{_TOKENIZER}{name}") for name in _ENDS}
    tokens = header.counts.get(f"{_TOKENIZER}tokens")
    ends = []
    for name, token_id in ids.items():
        if token_id is None or token_id in (_NO_TOKEN, -1):
            continue
        if type(token_id) is not int or token_id < 0 or (tokens and token_id >= tokens):
            reason = f"the ids of its tokens run from 0 to {(tokens or 1) - 1}"
            raise refused(header, f"{_TOKENIZER}{name}", token_id, reason)
        ends.append(token_id)
    return sorted(set(ends))


def refused(header: Header, key: str, value: Any, reason: str) -> UnsupportedModel:
    other = (
        "name another tokenizer (`rose worker --tokenizer`)"
        if key.startswith("tokenizer.")
        else "use the model's folder of safetensors instead"
    )
    return UnsupportedModel(
        f"this GGUF file of architecture {header.architecture!r} cannot be loaded: {key} is "
        f"{value!r}, and {reason}; {other}, or, if the key means nothing, remove it "
        f"(gguf-new-metadata --remove-metadata {key})"
    )


def _check_required(header: Header, config: Any) -> None:
    given = {*header.metadata, *header.counts}
    experts = [("expert_used_count",)] if header.value("expert_count") else []
    for names in (*_REQUIRED, *experts):
        is_read = any(hasattr(config, attribute) for name in names for attribute in _READ[name])
        if is_read and not any(f"{header.architecture}.{name}" in given for name in names):
            raise UnsupportedModel(
                f"this GGUF file of architecture {header.architecture!r} cannot be loaded: it has "
                f"no {header.architecture}.{names[0]}, which nothing else says: make the file "
                "again with llama.cpp's converter, or use the model's folder of safetensors"
            )


def _check_own(header: Header, config: Any, key: str, name: str, checked: Collection[str]) -> None:
    value = header.metadata.get(key)
    if name in _UNUSED or (key in header.metadata and name in checked):
        return
    if key in header.metadata and any(_same(value, neutral) for neutral in _NEUTRAL.get(name, ())):
        return
    if name == "attention.scale" and _same(value, _usual_scale(config)):
        return
    if name == "expert_gating_func":
        value = _GATING.get(value, value)
    has = [_attribute(config, attribute) for attribute in _READ.get(name, ())]
    if key in header.counts or not any(_same(value, own) for own in has if own is not None):
        known = [own for own in has if own is not None]
        reason = f"it is read as {known[0]!r}" if known else "nothing here reads it"
        raise refused(header, key, _shown(header, key), reason)


def _attribute(config: Any, name: str) -> Any:
    value = getattr(config, name, None)
    if name == "head_dim":
        return value or config.hidden_size // config.num_attention_heads
    return value


def _usual_scale(config: Any) -> float:
    return 1 / math.sqrt(_attribute(config, "head_dim"))


def _shown(header: Header, key: str) -> Any:
    return header.metadata.get(key, f"a list of {header.counts.get(key)}")


def _same(one: Any, other: Any) -> bool:
    """Files have single precision."""
    if isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= 1e-6 * max(abs(one), abs(other))
    return bool(one == other)
