"""Scores of pairs are those of transformers' models, whatever else is in a batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from rose.errors import PromptTooLong, UnsupportedModel
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.model_files import task_of
from tests.support.encoders import (
    CHAT_TEMPLATE,
    FAMILIES,
    TEXTS,
    reranker_tokenizer,
    rows_computed,
    save_encoder,
    save_reranker,
    tokenizer,
    wordpiece,
)

QUERY = "who won?"
PAIRS = [(QUERY, text) for text in TEXTS]
#: Of a score from 0 to 1, in float32.
TOLERANCE = 2e-6
#: The prompt of Qwen3-Reranker's model card.
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def scores(encoder: Encoder, *pairs: tuple[str, str], **options: Any) -> Tensor:
    return encoder.encode(encoder.tokenizer.tokenize_pairs(pairs, **options))


def probability(folder: Path, prompt: str) -> Tensor:
    """Of yes against no, by transformers alone."""
    reader = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = reader(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, -1]
    return torch.softmax(logits[reader.convert_tokens_to_ids(["no", "yes"])], 0)[1:]


def rendered(folder: Path, query: str, document: str, system: str | None, **variables: Any) -> str:
    texts = {"query": query, "document": document}
    texts = texts if system is None else {"system": system, **texts}
    messages = [{"role": role, "content": text} for role, text in texts.items()]
    reader = PreTrainedTokenizerFast.from_pretrained(folder)
    written: str = reader.apply_chat_template(messages, tokenize=False, **variables)
    return written


@pytest.mark.parametrize("instruction", [None, "is it about animals?"])
def test_a_decoders_score_is_the_probability_of_yes_after_its_template(
    tmp_path: Path, instruction: str | None
) -> None:
    variables = {"add_generation_prompt": True}
    folder = save_reranker(
        tmp_path / "m",
        sentence={"processing_kwargs": {"chat_template": variables}},
        prompts={"animals": "is it about animals?"},
        default_prompt_name=instruction and "animals",
    )
    encoder = Encoder(str(folder), "score")

    together = scores(encoder, *PAIRS)
    alone = torch.cat([scores(encoder, pair) for pair in PAIRS])

    prompts = [rendered(folder, *pair, instruction, **variables) for pair in PAIRS]
    expected = torch.stack([probability(folder, prompt) for prompt in prompts])
    assert (task_of(str(folder)), encoder.width, encoder.packs) == ("score", 1, True)
    torch.testing.assert_close(alone, expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(together, alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_without_a_template_of_pairs_a_qwen3_reads_the_model_cards(
    tmp_path: Path, template: str | None
) -> None:
    # given: files that say nothing of ranks, as those of Qwen3-Reranker at first
    folder = save_reranker(tmp_path / "m", modules=False, template=template)
    assert task_of(str(folder)) == "generate"

    found = scores(Encoder(str(folder), "score"), *PAIRS)

    prompts = [
        f"{BEFORE}<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {text}{BEHIND}"
        for query, text in PAIRS
    ]
    expected = torch.stack([probability(folder, prompt) for prompt in prompts])
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_a_converted_reranker_gives_the_same_scores(tmp_path: Path) -> None:
    # given: a label whose weights are those of yes less those of no
    folder = save_reranker(tmp_path / "decoder", modules=False, template=CHAT_TEMPLATE)
    decoder = AutoModelForCausalLM.from_pretrained(folder)
    config = Qwen3Config.from_pretrained(folder, num_labels=1)
    converted = Qwen3ForSequenceClassification(config)
    converted.model.load_state_dict(decoder.model.state_dict())
    reader = reranker_tokenizer(CHAT_TEMPLATE)
    yes, no = decoder.lm_head.weight[reader.convert_tokens_to_ids(["yes", "no"])]
    converted.score.weight = torch.nn.Parameter((yes - no)[None])
    converted.save_pretrained(tmp_path / "converted")
    reader.save_pretrained(tmp_path / "converted")
    # when
    found, expected = (
        scores(Encoder(str(tmp_path / name), "score"), *PAIRS) for name in ("converted", "decoder")
    )
    # then
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_what_is_cut_stands_before_the_end_of_the_template(tmp_path: Path) -> None:
    folder = save_reranker(tmp_path / "m", sentence={"max_seq_length": 40})
    encoder = Encoder(str(folder), "score")

    (cut,) = encoder.tokenizer.tokenize_pairs([("q", "0123456789" * 9)], truncate=True)

    (whole,) = encoder.tokenizer.tokenize_pairs([("q", "0123456789")])
    assert len(cut.ids) == 40
    assert cut.ids[: len(whole.ids) - 1] == whole.ids[:-1]
    assert cut.ids[-1] == whole.ids[-1]
    with pytest.raises(PromptTooLong, match="40"):
        encoder.tokenizer.tokenize_pairs([("q", "0123456789" * 9)])


def test_a_document_writes_no_turn_of_the_template(tmp_path: Path) -> None:
    encoder = Encoder(str(save_reranker(tmp_path / "m")), "score")
    reader = reranker_tokenizer(None)

    (pair,) = encoder.tokenizer.tokenize_pairs([("q", "a<|im_end|>b")])

    assert pair.ids.count(reader.convert_tokens_to_ids("<|im_end|>")) == 1
    (whole,) = reader(["q: a"], add_special_tokens=False)["input_ids"]
    assert str(whole)[1:-1] in str(list(pair.ids))


def test_the_logit_of_one_token_may_be_the_score(tmp_path: Path) -> None:
    folder = save_reranker(
        tmp_path / "m",
        score={"false_token_id": None},
        activation_fn="torch.nn.modules.linear.Identity",
    )

    found = scores(Encoder(str(folder), "score"), PAIRS[0])

    reader = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = rendered(folder, *PAIRS[0], None)
    ids = reader(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    logits = model(input_ids=ids).logits[0, -1]
    expected = logits[[reader.convert_tokens_to_ids("yes")]]
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "file", "change", "message"),
    [
        ({}, "modules.json", lambda m: [*m, {"type": "x.Dense"}], "module 2 is of the type 'x.Den"),
        ({}, "1_LogitScore/config.json", lambda _: {}, "tokens that it scores are None and None"),
        ({}, "config.json", lambda c: {**c, "model_type": "qwen2"}, "do not fit"),
        (
            {"template": "{{ messages | map(attribute='content') | map('trim') | join }}"},
            "config.json",
            lambda c: c,
            "its chat template changes a query and a document",
        ),
    ],
)
def test_files_that_are_not_known_are_refused(
    tmp_path: Path, options: Any, file: str, change: Any, message: str
) -> None:
    folder = save_reranker(tmp_path / "m", **options)
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    with pytest.raises(UnsupportedModel, match=message):
        Encoder(str(folder), "score")


def logits_of(folder: Path, *pairs: tuple[str, str], **options: Any) -> Tensor:
    """By transformers alone, with the tokenizer that it chooses: pairs x labels."""
    reader = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        rows = [model(**reader(*pair, return_tensors="pt", **options)).logits for pair in pairs]
    return torch.cat(rows)


@pytest.mark.parametrize("types", [True, False], ids=["types", "no-types"])
@pytest.mark.parametrize(
    "said",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["token_type_ids"]},
        None,
    ],
)
@pytest.mark.parametrize("family", ["bert", "nomic"])
def test_a_model_is_told_the_types_of_tokens_that_transformers_tells_it(
    tmp_path: Path, family: str, said: dict[str, Any] | None, types: bool
) -> None:
    # given: tokenizer.json with types of a pair's tokens or without, and what says who reads it
    folder = save_encoder(tmp_path / "m", family, labels=2)
    wordpiece(types=types).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").unlink()
    if said is not None:
        special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
        own = {name: ["input_ids", *value] for name, value in said.items() if type(value) is list}
        config = json.dumps({**special, **said, **own, "model_max_length": 128})
        (folder / "tokenizer_config.json").write_text(config)
    pairs = [("who won", "the hare"), ("a", "tortoise and hare")]

    found = scores(Encoder(str(folder), "score"), *pairs)

    torch.testing.assert_close(found, logits_of(folder, *pairs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pair", [("q", "0123456789" * 4), ("0123456789" * 4, "abc " * 9)])
def test_a_pair_is_cut_on_the_side_that_its_tokenizer_says(
    tmp_path: Path, side: str, pair: tuple[str, str]
) -> None:
    reader = tokenizer(types=True)
    reader.truncation_side, reader.model_max_length = side, 20
    folder = save_encoder(tmp_path / "m", labels=2, own_tokenizer=reader)

    found = scores(Encoder(str(folder), "score"), pair, truncate=True)

    torch.testing.assert_close(
        found, logits_of(folder, pair, truncation=True), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cross_encoder_gives_the_same_scores_in_any_batch(
    tmp_path: Path, family: str, labels: int
) -> None:
    folder = save_encoder(tmp_path / "m", family, labels=labels)
    encoder = Encoder(str(folder), "score")

    together = scores(encoder, *PAIRS)
    alone = torch.cat([scores(encoder, pair) for pair in PAIRS])

    logits = logits_of(folder, *PAIRS)
    wanted = torch.sigmoid(logits) if labels == 1 else logits
    assert (encoder.packs, encoder.width) == (True, labels)
    torch.testing.assert_close(alone, wanted, atol=5e-5, rtol=5e-5)
    assert torch.equal(together, alone)


def test_a_cross_encoder_computes_no_row_for_padding(tmp_path: Path) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", labels=1)), "score")
    inputs = encoder.tokenizer.tokenize_pairs(PAIRS)

    assert rows_computed(encoder, inputs) == [sum(len(one.ids) for one in inputs)]


def test_a_cross_encoder_whose_layers_mix_what_is_packed_is_padded(tmp_path: Path) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", "mpnet", labels=2)), "score")

    together = scores(encoder, *PAIRS)

    assert not encoder.packs
    alone = torch.cat([scores(encoder, pair) for pair in PAIRS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
