"""From the hidden states of a cross-encoder's transformer to its scores."""

from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.transformers_messages import first_line
from roseinfer.encoders.packing import are_close, tried_texts


class Classifier:
    """A model for sequence classification, whose transformer may be computed by somebody else.

    What follows the transformer is transformers' own code. It is tried at load with hidden states
    that are given to it.
    """

    def __init__(self, model: Any, padding: int) -> None:
        self._model = model
        self._padding = padding
        self.transformer = model.base_model
        self._given = _GivenStates(self.transformer)
        setattr(model, model.base_model_prefix, self._given)
        text = model.config.get_text_config()
        if text.pad_token_id is None:  # a decoder's asks it where a text ends
            text.pad_token_id = padding

    def logits(self, arguments: Mapping[str, Tensor], hidden: Tensor | None = None) -> Tensor:
        """[inputs, labels]. `hidden`: [inputs, tokens, width] of a padded batch, if they are known;
        padding's are ignored."""
        self._given.hidden = hidden
        logits: Tensor = self._model(**arguments).logits
        self._given.hidden = None
        return logits

    @torch.inference_mode()
    def fault(self, longest: int) -> str:
        """Why the hidden states of inputs of at most `longest` tokens may not be given; ""."""
        texts = [torch.tensor(ids) for ids in tried_texts(self.transformer, longest)]
        device = self.transformer.device
        alone = [{"input_ids": ids[None].to(device)} for ids in texts]
        expected = [self.logits(one) for one in alone]
        states = [self.transformer(**one).last_hidden_state[0] for one in alone]
        batch = {
            "input_ids": padded(texts, self._padding).to(device),
            "attention_mask": padded([torch.ones_like(ids) for ids in texts]).to(device),
        }
        try:
            logits = self.logits(batch, padded(states))
        except Exception as error:  # noqa: BLE001 - whatever the model's own code raises
            return first_line(error)
        return "" if are_close([logits], expected) else "its scores need more than hidden states"


def padded(rows: list[Tensor], value: float = 0) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


class _GivenStates(nn.Module):
    """In the place of a transformer."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer
        self.hidden: Tensor | None = None

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self.hidden is None:
            return self.transformer(*arguments, **named)
        pooler = getattr(self.transformer, "pooler", None)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=self.hidden,
            pooler_output=None if pooler is None else pooler(self.hidden),
        )


class TokenLogits:
    """The logit of one token less that of another, of the token that comes next."""

    def __init__(self, rows: Tensor, bias: Tensor | None = None) -> None:
        """`rows`: of the output layer, float32 [1 or 2, width]; `bias`: theirs."""
        self._rows = rows
        self._bias = bias

    @classmethod
    def of_model(cls, model: Any, yes: int, no: int | None) -> Self:
        """`model`: for causal language modelling. Raises: UnsupportedModel"""
        output = model.get_output_embeddings()
        tokens = [yes] if no is None else [yes, no]
        bias = None if output.bias is None else output.bias[tokens].float()
        logits = cls(output.weight[tokens].float(), bias)
        logits._check(model, tokens)
        return logits

    def __call__(self, vectors: Tensor) -> Tensor:
        """`vectors`: float32 [texts, width], the last hidden states. [texts, 1]"""
        logits = self._logits(vectors)
        return logits if logits.shape[1] == 1 else logits[:, :1] - logits[:, 1:]

    def _logits(self, vectors: Tensor) -> Tensor:
        return F.linear(vectors, self._rows, self._bias)

    @torch.inference_mode()
    def _check(self, model: Any, tokens: list[int]) -> None:
        """Some models scale their logits, or bound them."""
        ids = torch.tensor(tried_texts(model, 8)[:1], device=model.device)
        vectors = model.base_model(input_ids=ids).last_hidden_state[:, -1].float()
        expected = model(input_ids=ids).logits[:, -1, tokens]
        if not are_close([self._logits(vectors)], [expected]):
            raise UnsupportedModel("its logits are not those of its output layer alone")
