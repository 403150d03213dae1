"""Small random encoders with their files, as sentence-transformers writes them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:?!éü漢字 "
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
#: More than the tokenizer has.
VOCAB = 96

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 130,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {"type_vocab_size": 2}),
    "roberta": ("RobertaConfig", {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaConfig", {"type_vocab_size": 1}),
    "modernbert": (
        "ModernBertConfig",
        {
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "nomic": ("NomicBertConfig", {"type_vocab_size": 2}),
    "gte": ("GteConfig", {"type_vocab_size": 1}),
    "jina": ("JinaEmbeddingsV3Config", {"type_vocab_size": 1}),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 80, "activation": "gelu"},
    ),
    "electra": ("ElectraConfig", {"embedding_size": 48}),
    "eurobert": ("EuroBertConfig", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 16}),
    "mpnet": ("MPNetConfig", {}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 16,
            "use_bidirectional_attention": True,
        },
    ),
}
#: Whose texts are packed.
FAMILIES = tuple(family for family in _CONFIGS if family != "mpnet")

TEXTS = (
    "a",
    "the hare, the tortoise",
    "Where is the NEAREST café?",
    "0123456789" * 11,
    "漢字 and more",
    "one, two, three, four, five, six, seven, eight",
)


def save_encoder(
    folder: Path,
    family: str = "bert",
    *,
    labels: int | None = None,
    modules: bool = True,
    pooling: Mapping[str, Any] | None = None,
    dense: Sequence[tuple[int, str]] = (),
    normalize: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    sentence: Mapping[str, Any] | None = None,
    own_tokenizer: PreTrainedTokenizerFast | None = None,
    sizes: Mapping[str, Any] | None = None,
    seed: int = 0,
    **saved: Any,
) -> Path:
    """A random model of a family in `folder`. `labels`: a cross-encoder with as many. `modules`:
    with the files of sentence-transformers. `dense`: width and activation of each such head.
    `sentence`, `saved`, `sizes`: of what its Transformer, the whole and its configuration say."""
    torch.manual_seed(seed)
    name, own = _CONFIGS[family]
    config = getattr(transformers, name)(**{**_SIZES, **own, **(sizes or {})})
    if labels is None:
        loader: Any = transformers.AutoModel
    else:
        config.num_labels = labels
        loader = transformers.AutoModelForSequenceClassification
    model = loader.from_config(config).eval()
    model.save_pretrained(folder)
    own_tokenizer = own_tokenizer or tokenizer(types=own.get("type_vocab_size", 1) > 1)
    own_tokenizer.save_pretrained(folder)
    if labels is None and modules:
        save_modules(folder, config.hidden_size, pooling, dense, normalize=normalize)
        _write(
            folder / "config_sentence_transformers.json",
            {"prompts": prompts or {}, "default_prompt_name": default_prompt, **saved},
        )
        if sentence is not None:
            _write(folder / "sentence_bert_config.json", sentence)
    return folder


#: As those of rerankers are: it writes messages of the roles query and document.
PAIR_TEMPLATE = """{%- set given = messages | selectattr("role", "eq", "system") | first -%}
{%- set query = messages | selectattr("role", "eq", "query") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | first -%}
<|im_start|>{{ given.content if given else "does it fit?" }} {{ query.content }}: \
{{ document.content }}<|im_end|>{% if add_generation_prompt %}<|im_start|>yes or no? {% endif %}"""
#: It writes messages of other roles alone.
CHAT_TEMPLATE = (
    "{% for one in messages %}{% if one.role == 'user' %}{{ one.content }}{% endif %}{% endfor %}"
)


def save_reranker(
    folder: Path,
    *,
    modules: bool = True,
    template: str | None = PAIR_TEMPLATE,
    score: Mapping[str, Any] | None = None,
    sentence: Mapping[str, Any] | None = None,
    **saved: Any,
) -> Path:
    """A random decoder that says yes or no. `modules`: with sentence-transformers' files. `score`,
    `sentence`, `saved`: of what its LogitScore, its Transformer and the whole say."""
    torch.manual_seed(0)
    sizes = {**_SIZES, **_CONFIGS["qwen3"][1], "max_position_embeddings": 512}
    config = transformers.Qwen3Config(**sizes, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    own = reranker_tokenizer(template)
    own.save_pretrained(folder)
    if modules:
        kinds = ("base.modules.transformer.Transformer", "cross_encoder.modules.LogitScore")
        _write_modules(folder, zip(("", "1_LogitScore"), kinds, strict=True))
        (folder / "1_LogitScore").mkdir()
        tokens = {f"{is_so}_token_id": own.convert_tokens_to_ids(word) for is_so, word in _ANSWERS}
        _write(folder / "1_LogitScore/config.json", {**tokens, **(score or {})})
        forward = {"method": "forward", "method_output_name": "logits"}
        said = {
            "transformer_task": "text-generation",
            "modality_config": {"text": forward, "message": {**forward, "format": "flat"}},
            "module_output_name": "causal_logits",
            **(sentence or {}),
        }
        _write(folder / "sentence_bert_config.json", said)
        _write(
            folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder", **saved}
        )
    return folder


_ANSWERS = (("true", "yes"), ("false", "no"))


def reranker_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """As `tokenizer`, with words for its answers and tokens for turns, and none by itself."""
    own = tokenizer("yes", "no")
    backend = own.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    tokens = ["<|im_start|>", "<|im_end|>"]
    own.add_special_tokens({"additional_special_tokens": tokens})
    own.add_tokens(["<think>", "</think>"])
    own.chat_template, own.model_max_length = template, 512
    return own


def tokenizer(*others: str, types: bool = False) -> PreTrainedTokenizerFast:
    """A token for each character; capital letters are those of their small ones. `others`: tokens
    that no text has. `types`: the model is told which text of a pair a token is of."""
    words = [*_SPECIAL, *_CHARACTERS, *others]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    own.normalizer = normalizers.Lowercase()
    own.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    own.decoder = decoders.Fuse()
    own.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
        model_max_length=128,
        model_input_names=["input_ids", *["token_type_ids"] * types, "attention_mask"],
    )


def wordpiece(*, types: bool) -> Tokenizer:
    """A token for each letter, as BERT has its own. `types`: it tells the texts of a pair apart."""
    letters = _CHARACTERS[:26]
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *letters, *(f"##{letter}" for letter in letters)]
    own = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}))
    own.normalizer = normalizers.BertNormalizer()
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    second = "$B:1 [SEP]:1" if types else "$B [SEP]"
    own.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] {second}",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return own


def save_modules(
    folder: Path,
    width: int,
    pooling: Mapping[str, Any] | None = None,
    dense: Sequence[tuple[int, str]] = (),
    *,
    normalize: bool,
) -> None:
    """What follows a model whose hidden states have this width, as `save_encoder` takes it."""
    modules = [("", "models.Transformer")]
    modules.append(("1_Pooling", "models.Pooling"))
    (folder / "1_Pooling").mkdir()
    mode = pooling or {"pooling_mode_mean_tokens": True}
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **mode})
    width *= max(1, sum(value is True for name, value in mode.items() if name != "include_prompt"))
    for outputs, activation in dense:
        place = f"{len(modules)}_Dense"
        module = "linear" if activation == "Identity" else "activation"
        (folder / place).mkdir()
        _write(
            folder / place / "config.json",
            {
                "in_features": width,
                "out_features": outputs,
                "bias": True,
                "activation_function": f"torch.nn.modules.{module}.{activation}",
            },
        )
        weights = {
            "linear.weight": torch.randn(outputs, width) / width**0.5,
            "linear.bias": torch.randn(outputs),
        }
        save_file(weights, folder / place / "model.safetensors")
        modules.append((place, "models.Dense"))
        width = outputs
    if normalize:
        modules.append((f"{len(modules)}_Normalize", "models.Normalize"))
    _write_modules(folder, modules)


def _write_modules(folder: Path, modules: Iterable[tuple[str, str]]) -> None:
    """Of each its path and its type."""
    _write(
        folder / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.{kind}",
            }
            for number, (path, kind) in enumerate(modules)
        ],
    )


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def rows_computed(encoder: Any, inputs: Sequence[Any]) -> list[int]:
    """How many rows each forward pass has that encodes them."""
    rows: list[int] = []
    embedding = encoder._model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, arguments, __: rows.append(arguments[0].numel()))
    encoder.encode(inputs)
    return rows
