"""How encoders lie in a GGUF file: BERT's kind and Nomic's."""

from functools import partial

from torch import Tensor
from transformers import BertConfig, NomicBertConfig

from roseinfer.checkpoints.gguf.layouts import Draft, Layout
from roseinfer.checkpoints.gguf.parts import rope, sizes

_EMBEDDINGS = {
    "token_embd": "word_embeddings",
    "position_embd": "position_embeddings",
    "token_types": "token_type_embeddings",
    "token_embd_norm": "LayerNorm",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NOMIC = {
    "attn_output": "self_attn.o_proj",
    "attn_output_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "layer_output_norm": "post_mlp_layernorm",
}


def bert(draft: Draft) -> Layout:
    """Also RoBERTa's and XLM-R's, whose converter leaves out the positions that no token has, so
    that a text's begin at 0. The activation is that of all published ones."""
    layers = draft.value("block_count")
    for layer in range(layers):
        draft.rename(f"blk.{layer}.", f"encoder.layer.{layer}.", _BERT)
    settings = _settings(draft, layers)
    return draft.finish(BertConfig, hidden_act="gelu", **settings)


def nomic_bert(draft: Draft) -> Layout:
    layers = draft.value("block_count")
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"layers.{layer}."
        draft.rename(blk, parameters, _NOMIC)
        for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
            parameter = f"{parameters}self_attn.{name}.weight"
            draft.add(parameter, f"{blk}attn_qkv.weight", make=partial(_third, number))
    settings = _settings(draft, layers)
    return draft.finish(NomicBertConfig, hidden_act="silu", rope_parameters=rope(draft), **settings)


def _settings(draft: Draft, layers: int) -> dict[str, object]:
    draft.rename("", "embeddings.", _EMBEDDINGS)
    if draft.get("attention.causal", False):
        raise draft.refusal("its attention.causal is true, and an encoder's tokens see all others")
    draft.get("pooling_type")  # see roseinfer.encoders.model_files
    width = draft.value("embedding_length")
    return sizes(draft) | {
        "num_hidden_layers": layers,
        "intermediate_size": draft.value("feed_forward_length"),
        "layer_norm_eps": draft.value("attention.layer_norm_epsilon"),
        "pad_token_id": 0,
        "type_vocab_size": draft.numbers("token_types.weight") // width or 1,
    }


def _third(number: int, joined: Tensor) -> Tensor:
    return joined.chunk(3)[number]
