"""GGUF files of encoders as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFWriter, PoolingType
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GemmaTokenizer

from tests.support.gguf_files import add_key, add_tokens_of_characters

_NORMAL, _CONTROL = 1, 3

_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


_GEMMA = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_embedding_gemma(
    path: Path, model: Any, window: int, tokenizer: GemmaTokenizer, *dense: Tensor, **more: Any
) -> Path:
    """`window`: as its config.json has it. `dense`: weights of the modules behind the pooling.
    `more`: as of `write_encoder`."""
    config = model.config
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": window,
        "rope.freq_base": float(config.rope_parameters["full_attention"]["rope_theta"]),
        "pooling_type": int(PoolingType.MEAN),
    }
    writer = GGUFWriter(path, "gemma-embedding")
    for number, weight in enumerate(dense, 2):
        writer.add_tensor(f"dense_{number}.weight", weight.numpy())
        keys |= {f"dense_{number}_feat_in": weight.shape[1]}
        keys |= {f"dense_{number}_feat_out": weight.shape[0]}
    _add_keys(writer, "gemma-embedding", keys, more)
    add_tokens_of_characters(writer, tokenizer, config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_add_space_prefix(False)
    writer.add_add_eos_token(True)
    for name, tensor in model.state_dict().items():
        numbers = tensor + 1 if name.endswith("norm.weight") else tensor
        writer.add_tensor(_name(name, _GEMMA), numbers.float().numpy())
    _write(writer)
    return path


def write_encoder(
    path: Path,
    model: Any,
    tokenizer: Tokenizer,
    pooling: PoolingType = PoolingType.MEAN,
    **more: Any,
) -> Path:
    """An embedder, or of a cross-encoder all. `more`: other values of keys, after the
    architecture's name; None: without the key."""
    config = model.config
    is_nomic = config.model_type == "nomic_bert"
    architecture = "nomic-bert" if is_nomic else "bert"
    first = config.pad_token_id + 1 if "roberta" in config.model_type else 0
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings - first,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": config.layer_norm_eps,
        "attention.causal": False,
        "pooling_type": int(pooling),
    }
    if is_nomic:
        keys["rope.freq_base"] = float(config.rope_parameters["rope_theta"])
    writer = GGUFWriter(path, architecture)
    _add_keys(writer, architecture, keys, more)
    _add_tokenizer(writer, tokenizer, config.type_vocab_size)
    tensors = dict(model.state_dict())
    if is_nomic:
        for layer in range(config.num_hidden_layers):
            attention = f"layers.{layer}.self_attn."
            parts = [tensors.pop(f"{attention}{name}_proj.weight") for name in "qkv"]
            writer.add_tensor(f"blk.{layer}.attn_qkv.weight", _joined(parts))
    for own, tensor in tensors.items():
        name = own.removeprefix("roberta.")
        numbers = tensor[first:] if name == "embeddings.position_embeddings.weight" else tensor
        writer.add_tensor(_name(name, _BERT), numbers.float().numpy())
    _write(writer)
    return path


def _add_keys(
    writer: GGUFWriter, architecture: str, keys: dict[str, Any], more: dict[str, Any]
) -> None:
    changed = {name.replace("__", "."): value for name, value in more.items()}
    for name, value in (keys | changed).items():
        if value is not None:
            add_key(writer, f"{architecture}.{name}", value)


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _joined(parts: list[Tensor]) -> Any:
    return torch.cat(parts).float().numpy()


def _name(parameter: str, names: dict[str, str]) -> str:
    module, _, part = parameter.rpartition(".")
    layer = ""
    for beginning in ("encoder.layer.", "layers."):
        if module.startswith(beginning):
            number, _, module = module.removeprefix(beginning).partition(".")
            layer = f"blk.{number}."
    return f"{layer}{names[module]}.{part}"


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, types: int) -> None:
    vocabulary = tokenizer.get_vocab()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    is_unigram = type(tokenizer.model).__name__ == "Unigram"
    tokens = [word if is_unigram or word in special else _phantom(word) for word in words]
    writer.add_tokenizer_model("t5" if is_unigram else "bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    if is_unigram:
        pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
        writer.add_token_scores([float(score) for _, score in pieces])
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
    writer.add_token_types([_CONTROL if word in special else _NORMAL for word in words])
    writer.add_token_type_count(types)
    names = {"[UNK]": "unk", "<unk>": "unk", "[SEP]": "sep", "</s>": "sep"}
    names |= {"[CLS]": "bos", "<s>": "bos", "[PAD]": "pad", "<pad>": "pad"}
    for word, name in names.items():
        if word in words:
            getattr(writer, f"add_{name}_token_id")(words.index(word))


def _phantom(word: str) -> str:
    return word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
