"""Linear layers that oneDNN has in its order compute what torch's compute."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from roseinfer.encoders.linears import PackedLinears


def model(activation: str) -> BertModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=50, intermediate_size=40, hidden_act=activation, **sizes)
    return BertModel(config, add_pooling_layer=False).eval()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@torch.inference_mode()
def test_a_model_computes_the_same_with_them_and_without(activation: str) -> None:
    # given
    own, ids = model(activation), torch.arange(50)[None]
    expected, modules = own(ids).last_hidden_state, list(own.modules())
    # when
    linears = PackedLinears(own)
    # then
    assert not any(type(module) is nn.Linear for module in own.modules())
    torch.testing.assert_close(own(ids).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    # and when
    linears.restore()
    # then
    assert list(own.modules()) == modules
    assert torch.equal(own(ids).last_hidden_state, expected)
