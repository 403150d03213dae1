"""Random models of known shapes, with a tokenizer that reads a word as a token."""

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.support.encoders import save_modules

_BERT: dict[str, Any] = {"vocab_size": 30_522, "num_attention_heads": 12}
#: Configuration, its values, and how hidden states become a vector.
SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "minilm": (
        "BertConfig",
        {**_BERT, "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
        "mean",
    ),
    "bge": (
        "BertConfig",
        {**_BERT, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072},
        "cls",
    ),
    "qwen3": (
        "Qwen3Config",
        {
            "vocab_size": 151_669,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": True,
        },
        "lasttoken",
    ),
    "tiny": (
        "BertConfig",
        {**_BERT, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96},
        "mean",
    ),
}
POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_WORDS = 2000
_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_LONGEST = 256


def save_model(folder: Path, shape: str, *, pooling: str | None = None) -> Path:
    """A model and its files as sentence-transformers writes them; `pooling`: another one."""
    torch.manual_seed(0)
    name, values, usual = SHAPES[shape]
    config = getattr(transformers, name)(**values, pad_token_id=0)
    transformers.AutoModel.from_config(config).eval().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    modes = {"pooling_mode_mean_tokens": False, POOLINGS[pooling or usual]: True}
    save_modules(folder, config.hidden_size, modes, normalize=True)
    limits = {"max_seq_length": 2 * _LONGEST}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder


def pooling_of(folder: Path) -> str:
    flags = json.loads((folder / "1_Pooling/config.json").read_text())
    return next(name for name, flag in POOLINGS.items() if flags.get(flag))


def texts(count: int, seed: str) -> list[str]:
    """Of mixed lengths: most have 15 to 60 words, some over 100."""
    chosen = random.Random(seed)  # noqa: S311 - the same texts in every run
    return [
        " ".join(_word(chosen.randrange(_WORDS)) for _ in range(_length(chosen)))
        for _ in range(count)
    ]


def _length(chosen: random.Random) -> int:
    return max(2, min(_LONGEST - 2, round(chosen.lognormvariate(3.4, 0.7))))


def _word(number: int) -> str:
    return f"w{number}"


def _tokenizer() -> PreTrainedTokenizerFast:
    words = [*_SPECIAL, *map(_word, range(_WORDS))]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    special = dict(zip(("pad", "cls", "sep", "unk"), _SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{kind}_token": text for kind, text in special.items()},
    )
