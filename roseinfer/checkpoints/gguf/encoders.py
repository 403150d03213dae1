"""How encoders lie in a GGUF file: BERT's kind, Nomic's and EmbeddingGemma."""

from functools import partial
from typing import Any

from torch import Tensor
from transformers import BertConfig, Gemma3TextConfig, NomicBertConfig

from roseinfer.checkpoints.gguf.layouts import Draft, Layout
from roseinfer.checkpoints.gguf.parts import ATTENTION, MLP, head_size, rope, sizes, without_one

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
_GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
#: llama.cpp's number of the pooling of cross-encoders.
RANK = 4
#: What it calls the modules behind EmbeddingGemma's pooling, in their order.
DENSE = ("dense_2", "dense_3")
#: What llama.cpp takes where a file does not say.
_GEMMA_PERIOD, _GEMMA_SLIDING_THETA = 6, 10_000.0


def bert(draft: Draft) -> Layout:
    """Also RoBERTa's and XLM-R's, whose converter leaves out the positions that no token has, so
    that a text's begin at 0. The activation is that of all published ones. A cross-encoder's head
    is that of all three kinds."""
    layers = draft.value("block_count")
    scores = draft.get("pooling_type") == RANK
    model = "bert." if scores else ""
    for layer in range(layers):
        draft.rename(f"blk.{layer}.", f"{model}encoder.layer.{layer}.", _BERT)
    settings = _settings(draft, layers, model)
    if scores:
        settings["num_labels"] = _add_classifier(draft)
    return draft.finish(BertConfig, hidden_act="gelu", **settings)


def _add_classifier(draft: Draft) -> int:
    """Returns the number of labels."""
    if not (draft.has("cls.weight") and draft.has("cls.output.weight")):
        raise draft.refusal(
            "it lacks cls.weight or cls.output.weight: llama.cpp's converter leaves out a part of "
            "BERT's cross-encoders, and writes all of XLM-R's"
        )
    draft.rename("", "", {"cls": "bert.pooler.dense", "cls.output": "classifier"})
    draft.get("classifier.output_labels")
    labels: int = draft.numbers("cls.output.weight") // draft.value("embedding_length")
    return labels


def nomic_bert(draft: Draft) -> Layout:
    layers = draft.value("block_count")
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"layers.{layer}."
        draft.rename(blk, parameters, _NOMIC)
        for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
            parameter = f"{parameters}self_attn.{name}.weight"
            draft.add(parameter, f"{blk}attn_qkv.weight", make=partial(_third, number))
    settings = _settings(draft, layers, "")
    return draft.finish(NomicBertConfig, hidden_act="silu", rope_parameters=rope(draft), **settings)


def gemma_embedding(draft: Draft) -> Layout:
    """Gemma 3 whose tokens see those behind them, too; roseinfer.encoders.model_files reads what
    follows the pooling."""
    layers = draft.value("block_count")
    draft.rename("", "", {"token_embd": "embed_tokens"})
    draft.rename("", "", {"output_norm": "norm"}, make=without_one)
    for layer in range(layers):
        blk, parameters = f"blk.{layer}.", f"layers.{layer}."
        draft.rename(blk, parameters, _GEMMA_NORMS, make=without_one)
        draft.rename(blk, f"{parameters}self_attn.", ATTENTION)
        draft.rename(blk, f"{parameters}mlp.", MLP)
    for name in DENSE:
        draft.leave_out(f"{name}.")
        for end in ("in", "out"):
            draft.get(f"{name}_feat_{end}")
    draft.get("pooling_type")
    head = head_size(draft)
    full, sliding = rope(draft), {"rope_type": "default"}
    sliding["rope_theta"] = draft.get("rope.freq_base_swa", _GEMMA_SLIDING_THETA)
    return draft.finish(
        Gemma3TextConfig,
        num_hidden_layers=layers,
        num_key_value_heads=draft.value("attention.head_count_kv"),
        head_dim=head,
        query_pre_attn_scalar=head,
        intermediate_size=draft.value("feed_forward_length"),
        hidden_activation="gelu_pytorch_tanh",
        rms_norm_eps=draft.value("attention.layer_norm_rms_epsilon"),
        sliding_window=draft.value("attention.sliding_window"),
        layer_types=_gemma_layers(draft, layers),
        rope_parameters={"full_attention": full, "sliding_attention": sliding},
        use_bidirectional_attention=True,
        **sizes(draft),
    )


def _gemma_layers(draft: Draft, layers: int) -> list[str]:
    """A file has which layers slide, or how many there are to one that does not."""
    name = "attention.sliding_window_pattern"
    slides = draft.get(name, _GEMMA_PERIOD)
    if type(slides) is int and slides > 0:
        slides = [(layer + 1) % slides != 0 for layer in range(layers)]
    elif type(slides) is bool:
        slides = [slides] * layers
    if not (isinstance(slides, list) and len(slides) == layers):
        raise draft.refusal(f"its {name} is not one of each of its {layers} layers")
    return ["sliding_attention" if one else "full_attention" for one in slides]


def _settings(draft: Draft, layers: int, model: str) -> dict[str, Any]:
    """`model`: what its parameters' names begin with."""
    draft.rename("", f"{model}embeddings.", _EMBEDDINGS)
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
