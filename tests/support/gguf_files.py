"""GGUF files as llama.cpp's converter writes them, of small models of transformers."""

import json
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from numpy.typing import NDArray
from torch import Tensor
from transformers import GemmaTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from roseinfer.checkpoints.draft_layer import DraftLayer
from roseinfer.checkpoints.gguf.blocks import StoredBlocks
from roseinfer.checkpoints.gguf.families import find_layout
from roseinfer.checkpoints.gguf.header import read_header
from roseinfer.model.quantized_weight import CompactWeight
from tests.support.gguf_conversions import CONVERSIONS

_NORMAL, _CONTROL, _UNUSED, _BYTE = 1, 3, 5, 6

#: Bytes of a block of 256 weights; its 16-bit scales by their offsets, such that weights have a
#: mean of about zero.
_K_BLOCKS = {
    Type.Q4_K: (144, {0: 5e-4, 2: 3.75e-3}),
    Type.Q5_K: (176, {0: 2.5e-4, 2: 3.75e-3}),
    Type.Q6_K: (210, {208: 1e-4}),
}

#: What llama.cpp calls families that transformers calls otherwise.
_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "minimax_m2": "minimax-m2",
}


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    kind: Type = Type.F32,
    *,
    others: dict[str, Type] | None = None,
    more: dict[str, Any] | None = None,
    leave_out: str | None = None,
    without: str | None = None,
    pre: str = "gpt-2",
    draft_layer: DraftLayer | None = None,
    tensors: dict[str, NDArray[np.float32]] | None = None,
) -> Path:
    """The path. `kind` is the type of the matrices; of a K type they are noise, for there is no
    code in Python that makes such blocks. `others`: types of other matrices, by a part of their
    names. `more`: numbers and strings, after the architecture's name. `leave_out`: a part of the
    names of tensors to lose. `without`: a key to lose, after the architecture's name. `pre`:
    llama.cpp's name of how the tokenizer cuts text. `draft_layer`: the model's for
    further tokens. `tensors`: others, by their names in the file."""
    conversion = CONVERSIONS.get(model.config.model_type)
    architecture = _ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    keys = more or {}
    if conversion is not None:
        architecture = conversion.architecture
        if "moe" in getattr(model.config, "layers_block_type", ()):
            architecture = f"{architecture}_moe"
        keys = {**conversion.keys(model.config), **keys}
    if draft_layer is not None:
        layers = model.config.num_hidden_layers
        keys |= {"block_count": layers + 1, "nextn_predict_layers": 1}
    writer = GGUFWriter(path, architecture)
    if conversion is None:
        _add_config(writer, model.config)
    if isinstance(tokenizer, GemmaTokenizer | LlamaTokenizer):
        _add_tokenizer_of_characters(writer, tokenizer, model.config.vocab_size)
    else:
        add_tokenizer(writer, tokenizer, model.config.vocab_size, pre)
    for name, value in keys.items():
        key = (
            name
            if name.startswith(("general.", "tokenizer.", "quantize.", "split."))
            else f"{architecture}.{name}"
        )
        add_key(writer, key, value)
    if without is not None:
        del writer.kv_data[0][f"{architecture}.{without}"]
    for name, weights in chain(_tensors(model, architecture, draft_layer), (tensors or {}).items()):
        if leave_out is None or leave_out not in name:
            of_others = (other for part, other in (others or {}).items() if part in name)
            _add_tensor(writer, name, weights, next(of_others, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


#: Of the tokenizers of characters below.
MERGES = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "\u2581"), ("\n", "\n")]


def vocabulary(*special: str) -> dict[str, int]:
    """Letters, what is merged of them, and bytes for what it has no letter of."""
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\n", "\u2581", *"abcdefghijklmnopqrstuvwxyz", *map("".join, MERGES)]
    return {token: number for number, token in enumerate(tokens)}


def gemma_tokenizer() -> GemmaTokenizer:
    vocab = vocabulary("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return GemmaTokenizer(vocab=vocab, merges=MERGES)


def stored_blocks(path: Path) -> StoredBlocks:
    return StoredBlocks(path, find_layout(read_header(path)))


def kept_blocks(path: Path, model: Any) -> dict[str, CompactWeight]:
    """The blocks of a file as the engine keeps them, for a model that was loaded from it."""
    parameters = dict(model.named_parameters())
    weights = {
        name: read(parameters[name].detach())
        for name, read in stored_blocks(path).find(model).items()
        if name in parameters and parameters[name].dim() > 1
    }
    return {name: weight for name, weight in weights.items() if weight is not None}


def add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


def _add_config(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    if (theta := config.rope_parameters.get("rope_theta")) is not None:
        writer.add_rope_freq_base(theta)
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    if (chosen := getattr(config, "num_experts_per_tok", None)) is not None:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(chosen)
        inner = getattr(config, "moe_intermediate_size", config.intermediate_size)
        writer.add_expert_feed_forward_length(inner)
        if (shared := getattr(config, "shared_expert_intermediate_size", None)) is not None:
            writer.add_expert_shared_feed_forward_length(shared)


def add_tokenizer(
    writer: GGUFWriter, tokenizer: PreTrainedTokenizerFast, size: int = 0, pre: str = "gpt-2"
) -> None:
    """A byte-level one, whose special tokens are all that it adds to its vocabulary. Others, which
    nothing uses, fill it up to `size`."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["content"] for token in spec["added_tokens"]}
    vocabulary = tokenizer.get_vocab()
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    types = [_CONTROL if name in special else _NORMAL for name in names]
    fillers = [f"[PAD{number}]" for number in range(len(names), size)]
    writer.add_token_list(names + fillers)
    writer.add_token_types(types + [_UNUSED] * len(fillers))
    writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    writer.add_add_bos_token(False)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _add_tokenizer_of_characters(
    writer: GGUFWriter, tokenizer: GemmaTokenizer | LlamaTokenizer, size: int
) -> None:
    """Gemma 4's has its merges; of others the scores of tokens say what is merged first."""
    merges = add_tokens_of_characters(writer, tokenizer, size)
    if isinstance(tokenizer, LlamaTokenizer):
        writer.add_tokenizer_model("llama")
        return
    writer.add_tokenizer_model("gemma4")
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_add_space_prefix(False)


def add_tokens_of_characters(
    writer: GGUFWriter, tokenizer: GemmaTokenizer | LlamaTokenizer, size: int
) -> list[tuple[str, str]]:
    """With bytes for those that it lacks. Returns its merges."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {token["content"] for token in spec["added_tokens"]}
    names = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].__getitem__)
    merges = spec["model"]["merges"]
    ranks = {"".join(pair): -float(rank) for rank, pair in enumerate(merges)}
    types = [
        _CONTROL if name in special else _BYTE if name.startswith("<0x") else _NORMAL
        for name in names
    ]
    fillers = [f"<unused{number}>" for number in range(len(names), size)]
    writer.add_token_list(names + fillers)
    writer.add_token_scores([ranks.get(name, -1000.0) for name in names + fillers])
    writer.add_token_types(types + [_CONTROL] * len(fillers))
    for name in ("bos", "eos", "unk"):
        add = getattr(writer, f"add_{name}_token_id")
        add(getattr(tokenizer, f"{name}_token_id"))
    writer.add_add_bos_token(True)
    return [(left, right) for left, right in merges]


def _tensors(
    model: Any, architecture: str, draft_layer: DraftLayer | None
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """One after the other, for a model may fill most of the memory."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    layers = model.config.num_hidden_layers
    names = gguf.get_tensor_name_map(number, layers + 1)
    if (conversion := CONVERSIONS.get(model.config.model_type)) is not None:
        tied = model.config.tie_word_embeddings
        behind = {} if draft_layer is None else _behind(draft_layer, layers)
        for own_name, parameter in (model.state_dict() | behind).items():
            if tied and own_name == "lm_head.weight":
                continue
            for name, tensor in conversion.tensors(
                model.config, own_name, parameter.detach().float()
            ):
                place = name if name.startswith("blk.") else _place(names, name)
                yield place, tensor.contiguous().numpy()
        for name, numbers in conversion.extra(model.config).items():
            yield name, np.array(numbers, dtype=np.float32)
        return
    biases = (pair for pair in model.named_buffers() if pair[0].endswith("score_correction_bias"))
    for own_name, parameter in (*model.named_parameters(), *biases):  # tied ones come once
        weights = parameter.detach().float().numpy()
        if architecture == "llama" and own_name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = model.config.num_attention_heads
            if "k_proj" in own_name:
                heads = model.config.num_key_value_heads
            weights = _interleaved(weights, heads)
        if own_name.endswith("experts.gate_up_proj"):
            layer = own_name.split(".")[2]
            for kind, half in zip(("gate", "up"), np.split(weights, 2, axis=1), strict=True):
                yield f"blk.{layer}.ffn_{kind}_exps.weight", half
            continue
        if own_name.endswith("score_correction_bias"):
            yield f"blk.{own_name.split('.')[2]}.exp_probs_b.bias", weights
            continue
        if own_name.endswith("experts.down_proj"):
            own_name += ".weight"
        if own_name.endswith("shared_expert_gate.weight"):
            weights = weights[0]
        if architecture.startswith("gemma") and own_name.endswith("norm.weight"):
            weights = weights + 1
        yield _place(names, own_name), weights


def _behind(layer: DraftLayer, number: int) -> dict[str, Tensor]:
    """A layer for further tokens as one of the model's, and what is beside it."""
    blk, own = f"blk.{number}.nextn.", layer.model.model
    return {
        **{f"model.layers.{number}.{name}": t for name, t in own.layers[0].state_dict().items()},
        f"{blk}eh_proj.weight": layer.projection.weight,
        f"{blk}enorm.weight": layer.embedding.weight,
        f"{blk}hnorm.weight": layer.hidden.weight,
        f"{blk}shared_head_norm.weight": own.norm.weight,
    }


def _place(names: gguf.TensorNameMap, own_name: str) -> str:
    name = names.get_name(own_name, try_suffixes=(".weight", ".bias"))
    assert name is not None, f"the format has no name for {own_name}"
    return str(name)


def _interleaved(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows as llama.cpp's rotary embedding pairs them."""
    halves = weights.reshape(heads, 2, len(weights) // heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def _add_tensor(writer: GGUFWriter, name: str, weights: NDArray[np.float32], kind: Type) -> None:
    plain = ("ffn_gate_inp", "ssm_norm.", "conv1d.", "shortconv.conv.", "attn_k_b.")
    is_plain = name.endswith((".ssm_a", ".ssm_d")) or any(part in name for part in plain)
    if kind is Type.F32 or weights.ndim == 1 or is_plain:
        writer.add_tensor(name, np.ascontiguousarray(weights))
    elif kind in _K_BLOCKS:
        writer.add_tensor(name, _noise(weights.shape, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)


def _noise(shape: tuple[int, ...], kind: Type) -> NDArray[np.uint8]:
    block_bytes, scales = _K_BLOCKS[kind]
    generator = torch.Generator().manual_seed(sum(shape))
    size = (math.prod(shape[:-1]), shape[-1] // 256, block_bytes)
    blocks = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator).numpy()
    sizes = torch.rand(*size[:2], 1, generator=generator).numpy() + 0.5
    for offset, scale in scales.items():
        blocks[:, :, offset : offset + 2] = (scale * sizes).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
