"""Encoders in GGUF files, as llama.cpp's converter writes them, embed as those in folders."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import PoolingType
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from rose.errors import UnsupportedModel
from roseinfer.checkpoints.weights import load_model
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.model_files import task_of
from tests.roseinfer.models import byte_tokenizer
from tests.support.encoders import save_encoder, wordpiece
from tests.support.gguf_encoders import write_embedding_gemma, write_encoder
from tests.support.gguf_files import gemma_tokenizer, write_gguf

TEXTS = ("a", "the hare, the tortoise", "the NEAREST café?", "漢字 and   more", "xyz " * 20)
POOLINGS = {
    PoolingType.MEAN: "pooling_mode_mean_tokens",
    PoolingType.CLS: "pooling_mode_cls_token",
    PoolingType.LAST: "pooling_mode_lasttoken",
}


def wrapped(own: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=own, model_max_length=128, **names)


def of_words() -> PreTrainedTokenizerFast:
    own = wordpiece(types=False)
    own.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    own.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    return wrapped(own, cls_token="[CLS]", sep_token="[SEP]", **names)


def of_pieces() -> PreTrainedTokenizerFast:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581the", "re", "\u2581and"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz,?漢"]
    own = Tokenizer(models.Unigram([(one, -0.1 * n) for n, one in enumerate(pieces)], 3))
    own.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Replace(" " * 3, " "), normalizers.Replace("  ", " ")]
    )
    own.pre_tokenizer = pre_tokenizers.Metaspace()
    own.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    own.add_special_tokens(pieces[:4])
    names = {"pad_token": "<pad>", "unk_token": "<unk>"}
    return wrapped(own, cls_token="<s>", sep_token="</s>", **names)


def vectors(encoder: Encoder) -> Tensor:
    return encoder.encode(encoder.tokenizer.tokenize(TEXTS))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", ["bert", "nomic", "xlm-roberta"])
def test_a_file_embeds_as_its_folder(tmp_path: Path, family: str, pooling: PoolingType) -> None:
    # given
    reader = of_pieces() if family == "xlm-roberta" else of_words()
    sizes = {"pad_token_id": reader.pad_token_id, "vocab_size": len(reader)}
    mode = dict.fromkeys(POOLINGS.values(), False) | {POOLINGS[pooling]: True}
    folder = save_encoder(
        tmp_path / "m", family, own_tokenizer=reader, sizes=sizes, pooling=mode, normalize=True
    )
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    path = write_encoder(tmp_path / "m.gguf", model, reader.backend_tokenizer, pooling)
    # when
    of_folder, of_file = Encoder(str(folder), "embed"), Encoder(str(path), "embed")
    # then
    assert of_file.tokenizer.tokenize(TEXTS) == of_folder.tokenizer.tokenize(TEXTS)
    assert torch.equal(vectors(of_file), vectors(of_folder))
    assert of_file.is_compiled
    assert task_of(str(path)) == "embed"


def test_a_decoders_file_embeds_with_the_end_that_it_wants(tmp_path: Path) -> None:
    # given
    reader = byte_tokenizer()
    sizes = {"vocab_size": len(reader), "tie_word_embeddings": True}
    mode = {"pooling_mode_lasttoken": True}
    folder = save_encoder(
        tmp_path / "m", "qwen3", own_tokenizer=reader, sizes=sizes, pooling=mode, normalize=True
    )
    decoder = AutoModelForCausalLM.from_pretrained(folder)
    more = {"pooling_type": int(PoolingType.LAST), "tokenizer.ggml.add_eos_token": True}
    path = write_gguf(tmp_path / "m.gguf", decoder, reader, more=more)
    # when
    encoder, plain = Encoder(str(path), "embed"), Encoder(str(folder), "embed")
    # then
    ended = [f"{text}<eos>" for text in TEXTS]
    assert [one.ids[-1] for one in encoder.tokenizer.tokenize(TEXTS)] == [
        reader.eos_token_id for _ in TEXTS
    ]
    ids = [reader.encode(text) for text in ended]
    expected = plain.encode(plain.tokenizer.tokenize([tuple(own) for own in ids]))
    torch.testing.assert_close(vectors(encoder), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_file_may_be_brought_to_few_bits(tmp_path: Path, weights: str) -> None:
    reader = of_words()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": len(reader)}
    folder = save_encoder(tmp_path / "m", "bert", own_tokenizer=reader, sizes=sizes, normalize=True)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    path = write_encoder(tmp_path / "m.gguf", model, reader.backend_tokenizer)
    found, exact = (
        vectors(Encoder(str(path), "embed", weights=weights)),
        vectors(Encoder(str(path), "embed")),
    )
    assert 0.8 < (found * exact).sum(1).min() < 0.99999


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attention__causal": True}, "attention.causal is true"),
        ({"attention__layer_norm_epsilon": None}, "no bert.attention.layer_norm_epsilon"),
        ({"attention__clamp_kqv": 4.0}, "bert.attention.clamp_kqv is 4.0"),
        ({"pooling_type": 4}, "it lacks cls.weight or cls.output.weight"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    reader = of_words()
    folder = save_encoder(tmp_path / "m", own_tokenizer=reader, sizes={"vocab_size": len(reader)})
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    path = write_encoder(tmp_path / "m.gguf", model, reader.backend_tokenizer, **changed)
    task = task_of(str(path))
    assert task in ("embed", "score")
    with pytest.raises(UnsupportedModel, match=said):
        Encoder(str(path), "score" if task == "score" else "embed")


PAIRS = [("who won", text) for text in TEXTS]


def scores(encoder: Encoder) -> Tensor:
    return encoder.encode(encoder.tokenizer.tokenize_pairs(PAIRS))


@pytest.mark.parametrize("labels", [1, 3])
def test_a_cross_encoders_file_scores_as_its_folder(tmp_path: Path, labels: int) -> None:
    # given
    reader = of_pieces()
    sizes = {"pad_token_id": reader.pad_token_id, "vocab_size": len(reader)}
    folder = save_encoder(
        tmp_path / "m", "xlm-roberta", labels=labels, own_tokenizer=reader, sizes=sizes
    )
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    path = write_encoder(tmp_path / "m.gguf", model, reader.backend_tokenizer, PoolingType.RANK)
    # when
    of_folder, of_file = Encoder(str(folder), "score"), Encoder(str(path), "score")
    # then
    assert task_of(str(path)) == "score"
    assert of_file.tokenizer.tokenize_pairs(PAIRS) == of_folder.tokenizer.tokenize_pairs(PAIRS)
    assert of_file.is_compiled
    torch.testing.assert_close(scores(of_file), scores(of_folder), atol=1e-6, rtol=0)


def write_reranker(folder: Path, answers: list[str]) -> Path:
    """A decoder in `folder` and in a GGUF file: with rows for its answers, as llama.cpp writes a
    reranker, or without. Returns the file's path."""
    reader = byte_tokenizer()
    words = ["yes", "no", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    reader.add_special_tokens({"additional_special_tokens": words})
    sizes = {"vocab_size": len(reader), "tie_word_embeddings": True, "use_cache": True}
    save_encoder(
        folder,
        "qwen3",
        own_tokenizer=reader,
        modules=False,
        sizes={**sizes, "max_position_embeddings": 1024},
    )
    decoder = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    decoder.save_pretrained(folder)
    path = folder.with_suffix(".gguf")
    if not answers:
        return write_gguf(path, decoder, reader)
    rows = decoder.lm_head.weight[reader.convert_tokens_to_ids(answers)].detach().numpy()
    more = {"pooling_type": int(PoolingType.RANK), "classifier.output_labels": ["yes", "no"]}
    return write_gguf(path, decoder, reader, more=more, tensors={"cls.output.weight": rows})


@pytest.mark.parametrize("answers", [["yes", "no"], []], ids=["rows", "no-rows"])
def test_a_decoders_file_scores_by_the_rows_of_its_answers(
    tmp_path: Path, answers: list[str]
) -> None:
    # given
    path = write_reranker(tmp_path / "m", answers)
    # when
    found = scores(Encoder(str(path), "score"))
    # then
    assert task_of(str(path)) == ("score" if answers else "generate")
    expected = scores(Encoder(str(tmp_path / "m"), "score"))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_a_decoder_with_more_answers_is_refused(tmp_path: Path) -> None:
    path = write_reranker(tmp_path / "m", ["yes", "no", "<think>"])
    with pytest.raises(UnsupportedModel, match="to have one or two rows of 48 numbers"):
        Encoder(str(path), "score")


def test_a_reranker_does_not_generate(tmp_path: Path) -> None:
    path = write_reranker(tmp_path / "m", ["yes", "no"])
    with pytest.raises(UnsupportedModel, match="of this size has"):
        load_model(str(path), torch.device("cpu"), torch.float32)


def without_bias(module: Path) -> Tensor:
    """The weight of a dense module, which has no other any more."""
    weight = load_file(module / "model.safetensors")["linear.weight"]
    save_file({"linear.weight": weight}, module / "model.safetensors")
    config = json.loads((module / "config.json").read_text())
    (module / "config.json").write_text(json.dumps({**config, "bias": False}))
    return weight


@pytest.mark.parametrize("widths", [(), (64, 48)], ids=["plain", "dense"])
def test_an_embedding_gemmas_file_embeds_as_its_folder(
    tmp_path: Path, widths: tuple[int, ...]
) -> None:
    # given
    reader = gemma_tokenizer()
    reader.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    folder = save_encoder(
        tmp_path / "m",
        "gemma3",
        own_tokenizer=reader,
        sizes={"vocab_size": len(reader), "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
        dense=[(width, "torch.nn.modules.linear.Identity") for width in widths],
        normalize=True,
    )
    dense = [without_bias(folder / f"{n}_Dense") for n in range(2, 2 + len(widths))]
    model = AutoModel.from_pretrained(folder)
    window = 2 * (model.config.sliding_window - 1)  # on both sides of a token
    path = write_embedding_gemma(tmp_path / "m.gguf", model, window, reader, *dense)
    # when
    of_folder, of_file = Encoder(str(folder), "embed"), Encoder(str(path), "embed")
    # then
    assert of_file.tokenizer.tokenize(TEXTS) == of_folder.tokenizer.tokenize(TEXTS)
    assert of_file.is_compiled
    torch.testing.assert_close(vectors(of_file), vectors(of_folder), atol=2e-6, rtol=0)


def test_a_file_without_a_pooling_generates(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", torch.zeros(4, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert task_of(str(path)) == "generate"
