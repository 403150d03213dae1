"""A model with gated delta nets and attention in turn, as Qwen 3.5 has them, and a layer for
further tokens (DeepSeek V3, arXiv 2412.19437, section 2.2), trained together."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3_5TextModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

from roseinfer.checkpoints.draft_layer import config_of_one

_SIZE, _LAYERS = 384, 12
#: Tokens behind the next that the layer learns to draft, each from its states for the one before,
#: and what they weigh together beside the next.
_FURTHER, _FURTHER_WEIGHT = 3, 0.3
#: Labels of tokens that carry no loss.
IGNORED = -100


def loss_of_states(head: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    """Of the tokens `targets` [N, T] that `head` predicts of the first T of `states` [N, ., H]."""
    kept = targets != IGNORED
    logits = head(states[:, : targets.shape[1]][kept])
    return cross_entropy(logits.float(), targets[kept])


class Hybrid(nn.Module):
    """About 22 million parameters. Learns from `loss`; the layer's part teaches the model, too."""

    def __init__(self, vocabulary: int, context: int, end: int) -> None:
        super().__init__()
        config = Qwen3_5TextConfig(
            vocab_size=vocabulary,
            hidden_size=_SIZE,
            intermediate_size=1024,
            num_hidden_layers=_LAYERS,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=64,
            linear_num_key_heads=6,
            linear_num_value_heads=6,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
            initializer_range=_SIZE**-0.5,
        )
        self.model = Qwen3_5ForCausalLM(config)
        self.layer = Qwen3_5TextModel(config_of_one(config))
        del self.layer.embed_tokens
        self.projection = nn.Linear(2 * _SIZE, _SIZE, bias=False)
        nn.init.normal_(self.projection.weight, std=(2 * _SIZE) ** -0.5)
        self.embedding_norm = Qwen3_5RMSNorm(_SIZE)
        self.hidden_norm = Qwen3_5RMSNorm(_SIZE)

    def loss(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Of the next token, and of all tokens together, for inputs and labels [N, T]."""
        states = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        embedded = self.model.model.embed_tokens(inputs)
        first = loss_of_states(self.model.lm_head, states, labels[:, 1:])
        total = first
        for further in range(1, min(_FURTHER, inputs.shape[1] - 2) + 1):
            # Row i: the states behind token i + further - 1, and the token that follows.
            both = (self.embedding_norm(embedded[:, further:]), self.hidden_norm(states[:, :-1]))
            joined = self.projection(torch.cat(both, dim=-1))
            states = self.layer(inputs_embeds=joined, use_cache=False).last_hidden_state
            loss = loss_of_states(self.model.lm_head, states, labels[:, 1 + further :])
            total = total + _FURTHER_WEIGHT / _FURTHER * loss
        return first, total

    def save_layer(self, folder: Path, dtype: torch.dtype) -> None:
        """Into the model's file in `folder`, by the names that Qwen's checkpoints have for it."""
        path = folder / "model.safetensors"
        named = {
            "fc.weight": self.projection.weight,
            "pre_fc_norm_embedding.weight": self.embedding_norm.weight,
            "pre_fc_norm_hidden.weight": self.hidden_norm.weight,
            **self.layer.state_dict(),
        }
        layer = {f"mtp.{name}": weight.detach().to(dtype) for name, weight in named.items()}
        save_file(load_file(path) | layer, path, metadata={"format": "pt"})
