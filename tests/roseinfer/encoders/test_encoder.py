"""Vectors and scores are those of transformers' model and of sentence-transformers' files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, PreTrainedTokenizerFast

from rose.errors import InvalidParameter, ModelNotFound, PromptTooLong, UnsupportedModel
from roseinfer.encoders.encoder import Encoder
from roseinfer.encoders.model_files import task_of
from tests.support.encoders import FAMILIES, TEXTS, rows_computed, save_encoder, tokenizer

#: Of a number of a vector of length 1, in float32.
TOLERANCE = 2e-6


def hidden_states(folder: Path, text: str) -> Tensor:
    """By transformers alone: tokens x width."""
    model = AutoModel.from_pretrained(folder).eval()
    ids = tokenizer()(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        states: Tensor = model(input_ids=ids).last_hidden_state[0]
    return states


def vectors(encoder: Encoder, *texts: str, **options: Any) -> Tensor:
    return encoder.encode(encoder.tokenizer.tokenize(texts, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_is_the_mean_of_the_hidden_states_in_any_batch(
    tmp_path: Path, family: str
) -> None:
    folder = save_encoder(tmp_path / "m", family, normalize=True)
    encoder = Encoder(str(folder), "embed")

    together = vectors(encoder, *TEXTS)
    alone = torch.cat([vectors(encoder, text) for text in TEXTS])
    expected = torch.stack([normalize(hidden_states(folder, t).mean(0), dim=0) for t in TEXTS])

    torch.testing.assert_close(alone, expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(together, alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_is_computed_for_padding(tmp_path: Path, family: str) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", family)), "embed")
    inputs = encoder.tokenizer.tokenize(TEXTS)

    assert rows_computed(encoder, inputs) == [sum(len(one.ids) for one in inputs)]


def test_a_model_whose_layers_mix_what_is_packed_is_padded(tmp_path: Path) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", "mpnet")), "embed")

    together = vectors(encoder, *TEXTS)

    assert not encoder.packs
    alone = torch.cat([vectors(encoder, text) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)


def weighted(states: Tensor) -> Tensor:
    weights = torch.arange(1, len(states) + 1.0)
    return weights @ states / weights.sum()


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "pooling_mode_cls_token": lambda states: states[0],
    "pooling_mode_max_tokens": lambda states: states.amax(0),
    "pooling_mode_mean_tokens": lambda states: states.mean(0),
    "pooling_mode_mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "pooling_mode_weightedmean_tokens": weighted,
    "pooling_mode_lasttoken": lambda states: states[-1],
}


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_each_pooling_is_what_its_name_says(tmp_path: Path, family: str, mode: str) -> None:
    folder = save_encoder(tmp_path / "m", family, pooling={mode: True})

    rows = vectors(Encoder(str(folder), "embed"), *TEXTS)

    expected = torch.stack([POOLINGS[mode](hidden_states(folder, text)) for text in TEXTS])
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-5)


def test_several_poolings_are_joined_in_their_order(tmp_path: Path) -> None:
    by_flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    folder = save_encoder(tmp_path / "m", pooling=by_flags)

    row = vectors(Encoder(str(folder), "embed"), TEXTS[1])[0]

    states = hidden_states(folder, TEXTS[1])
    torch.testing.assert_close(row, torch.cat([states[0], states.mean(0)]), atol=2e-5, rtol=1e-5)


def test_the_pooling_may_be_named_as_later_versions_do(tmp_path: Path) -> None:
    named = {"pooling_mode": ["lasttoken", "cls"], "embedding_dimension": 48}
    folder = save_encoder(tmp_path / "m", pooling=named)

    row = vectors(Encoder(str(folder), "embed"), TEXTS[1])[0]

    states = hidden_states(folder, TEXTS[1])
    torch.testing.assert_close(row, torch.cat([states[-1], states[0]]), atol=2e-5, rtol=1e-5)


def test_dense_heads_follow_the_pooling(tmp_path: Path) -> None:
    dense = [(20, "Tanh"), (12, "GELU"), (16, "Identity")]
    folder = save_encoder(tmp_path / "m", dense=dense, normalize=True)
    encoder = Encoder(str(folder), "embed")

    row = vectors(encoder, TEXTS[2])[0]

    expected = hidden_states(folder, TEXTS[2]).mean(0)
    activations = (torch.tanh, torch.nn.functional.gelu, lambda x: x)
    for number, activate in enumerate(activations, start=2):
        from safetensors.torch import load_file

        weights = load_file(folder / f"{number}_Dense/model.safetensors")
        expected = activate(weights["linear.weight"] @ expected + weights["linear.bias"])
    assert encoder.width == 16
    torch.testing.assert_close(row, normalize(expected, dim=0), atol=TOLERANCE, rtol=0)


def test_fewer_dimensions_are_the_first_ones_of_length_one(tmp_path: Path) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", normalize=True)), "embed")
    rows = vectors(encoder, *TEXTS)

    shorter = encoder.shortened(rows, 10)

    torch.testing.assert_close(shorter, normalize(rows[:, :10], dim=1))
    raw = Encoder(str(save_encoder(tmp_path / "raw")), "embed")
    rows = vectors(raw, *TEXTS)
    assert torch.equal(raw.shortened(rows, 10), rows[:, :10])


def test_a_models_files_may_say_how_many_dimensions_are_left(tmp_path: Path) -> None:
    whole = Encoder(str(save_encoder(tmp_path / "whole", normalize=True)), "embed")
    folder = save_encoder(tmp_path / "m", normalize=True, truncate_dim=10)
    encoder = Encoder(str(folder), "embed")

    rows = vectors(encoder, *TEXTS)

    assert (encoder.width, encoder.fingerprint == whole.fingerprint) == (10, False)
    torch.testing.assert_close(rows, whole.shortened(vectors(whole, *TEXTS), 10))


def test_a_prompt_stands_before_the_text(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "document": "text: "}
    folder = save_encoder(tmp_path / "m", prompts=prompts, default_prompt="document")
    encoder = Encoder(str(folder), "embed")

    asked = vectors(encoder, "a hare", prompt_name="query")
    default = vectors(encoder, "a hare")

    assert torch.equal(asked, vectors(encoder, "query: a hare", prompt_name=""))
    assert torch.equal(default, vectors(encoder, "text: a hare", prompt_name=""))
    with pytest.raises(InvalidParameter, match="no prompt 'q', only: query, document"):
        vectors(encoder, "a hare", prompt_name="q")


@pytest.mark.parametrize(
    ("prompts", "before"),
    [
        ({"query": "q: ", "document": "d: "}, "q: "),
        ({"Retrieval.query": "q: "}, "q: "),
        ({"document": "d: "}, ""),
        ({}, ""),
    ],
)
def test_a_prompt_may_be_asked_for_by_what_a_text_is_for(
    tmp_path: Path, prompts: dict[str, str], before: str
) -> None:
    encoder = Encoder(str(save_encoder(tmp_path / "m", prompts=prompts)), "embed")

    asked = encoder.tokenizer.tokenize(["a hare"], input_type="query")

    assert asked == encoder.tokenizer.tokenize([before + "a hare"])


@pytest.mark.parametrize(
    ("mode", "pooled"),
    [
        ("pooling_mode_mean_tokens", lambda states: states.mean(0)),
        ("pooling_mode_cls_token", lambda states: states[0]),
    ],
)
def test_a_prompt_may_be_left_out_of_the_pooling(
    tmp_path: Path, mode: str, pooled: Callable[[Tensor], Tensor]
) -> None:
    folder = save_encoder(
        tmp_path / "m",
        pooling={mode: True, "include_prompt": False},
        prompts={"q": "find: "},
    )

    row = vectors(Encoder(str(folder), "embed"), "a hare", prompt_name="q")[0]

    states = hidden_states(folder, "find: a hare")[1 + len("find: ") :]
    torch.testing.assert_close(row, pooled(states), atol=2e-5, rtol=1e-5)


def test_what_stands_behind_a_prompt_of_qwen3_is_no_part_of_it(tmp_path: Path) -> None:
    # given: padding's token ends each text, as Qwen3-Embedding's tokenizer has it
    reader = tokenizer()
    reader.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <pad>", special_tokens=[("<pad>", 0)]
    )
    folder = save_encoder(
        tmp_path / "m",
        "qwen3",
        pooling={"pooling_mode_mean_tokens": True, "include_prompt": False},
        prompts={"q": "find: "},
        own_tokenizer=reader,
    )

    row = vectors(Encoder(str(folder), "embed"), "a hare", prompt_name="q")[0]

    ids = torch.tensor(reader("find: a hare")["input_ids"])
    states = AutoModel.from_pretrained(folder).eval()(input_ids=ids[None]).last_hidden_state[0]
    torch.testing.assert_close(row, states[len("find: ") :].mean(0), atol=2e-5, rtol=1e-5)


MESSAGE = {"method": "forward", "method_output_name": "last_hidden_state", "format": "flat"}
TEMPLATE = "{% for one in messages %}<s>{{ one.role }}: {{ one.content }}</s>{% endfor %}"


def message_embedder(folder: Path, template: str | None = TEMPLATE, **sentence: Any) -> Path:
    """As later versions save a decoder that has a chat template."""
    reader = tokenizer()
    reader.chat_template = template
    said = {"modality_config": {"text": {}, "message": MESSAGE}, **sentence}
    return save_encoder(
        folder,
        "qwen3",
        pooling={"pooling_mode": "lasttoken"},
        prompts={"q": "find it"},
        sentence=said,
        own_tokenizer=reader,
    )


@pytest.mark.parametrize("prompt", ["q", ""])
def test_a_text_may_be_a_message_of_the_chat_template(tmp_path: Path, prompt: str) -> None:
    folder, texts = message_embedder(tmp_path / "m"), TEXTS[:3]

    rows = vectors(Encoder(str(folder), "embed"), *texts, prompt_name=prompt)

    reader = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    before = [{"role": "system", "content": "find it"}] if prompt else []
    for row, text in zip(rows, texts, strict=True):
        messages = [*before, {"role": "user", "content": text}]
        ids = reader.apply_chat_template(messages, return_tensors="pt")["input_ids"]
        states = model(input_ids=ids).last_hidden_state[0]
        torch.testing.assert_close(row, states[-1], atol=2e-5, rtol=1e-5)


def test_a_message_is_cut_before_the_end_of_the_template(tmp_path: Path) -> None:
    encoder = Encoder(str(message_embedder(tmp_path / "m", max_seq_length=30)), "embed")

    (cut,) = encoder.tokenizer.tokenize(["0123456789" * 4], truncate=True)
    (whole,) = encoder.tokenizer.tokenize(["0123456789"])

    assert len(cut.ids) == 30
    assert cut.ids[: len(whole.ids) - 1] == whole.ids[:-1]
    assert cut.ids[-1] == whole.ids[-1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{{ messages[0].role }}", "has no place for a text"),
        ("{{ messages[-1].content | trim }}", "changes a text"),
    ],
)
def test_a_chat_template_that_writes_no_text_is_refused(
    tmp_path: Path, template: str | None, message: str
) -> None:
    folder = message_embedder(tmp_path / "m", template)

    with pytest.raises(UnsupportedModel, match=message):
        Encoder(str(folder), "embed")


def test_a_text_that_is_too_long_is_refused_or_cut(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m", sentence={"max_seq_length": 10})
    encoder = Encoder(str(folder), "embed")

    assert encoder.max_tokens == 10
    with pytest.raises(PromptTooLong, match="11"):
        encoder.tokenizer.tokenize(["ok", "123456789"])
    (cut,) = encoder.tokenizer.tokenize(["123456789"], truncate=True)
    assert cut == encoder.tokenizer.tokenize(["12345678"])[0]
    with pytest.raises(PromptTooLong):
        encoder.tokenizer.tokenize([[5] * 11])
    assert encoder.tokenizer.tokenize([[5] * 11], truncate=True)[0].ids == (5,) * 10


@pytest.mark.parametrize(
    "said",
    [
        {"tokenizer_args": {"model_max_length": 10}},
        {"processor_kwargs": {"model_max_length": 10}, "max_seq_length": 20},
        {"processing_kwargs": {"text": {"max_length": 10}}, "max_seq_length": 20},
    ],
)
def test_later_versions_say_elsewhere_how_long_a_text_may_be(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    assert Encoder(str(save_encoder(tmp_path / "m", sentence=said)), "embed").max_tokens == 10


def test_token_ids_stay_as_they_are(tmp_path: Path) -> None:
    encoder = Encoder(
        str(save_encoder(tmp_path / "m", prompts={"q": "x"}, default_prompt="q")), "embed"
    )

    as_text, as_ids = encoder.tokenizer.tokenize(["hare", [1, 27, 11, 4, 21, 8, 2]])

    assert as_ids.ids == as_text.ids
    with pytest.raises(InvalidParameter, match="from 0 to 95"):
        encoder.tokenizer.tokenize([[96]])


def test_a_cross_encoders_file_may_say_its_activation(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m", labels=1)
    sigmoid = Encoder(str(folder), "score")
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config))
    pairs = sigmoid.tokenizer.tokenize_pairs([("a", "b"), ("a", "c")])

    scores = Encoder(str(folder), "score").encode(pairs)

    torch.testing.assert_close(torch.sigmoid(scores), sigmoid.encode(pairs))


def test_what_a_model_is_for_is_found_out_from_its_files(tmp_path: Path) -> None:
    embedder = save_encoder(tmp_path / "embedder", "qwen3")
    plain = save_encoder(tmp_path / "plain", modules=False)
    scorer = save_encoder(tmp_path / "scorer", labels=2)
    decoder = save_encoder(tmp_path / "decoder", "qwen3", modules=False)

    tasks = [task_of(str(folder)) for folder in (embedder, plain, scorer, decoder)]

    assert tasks == ["embed", "embed", "score", "generate"]
    assert task_of(None) == "generate"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("modules.json", lambda m: [*m, {"type": "my.Code", "path": ""}], "type 'my.Code'"),
        ("modules.json", lambda m: m[:1], "its second module is no Pooling"),
        ("modules.json", lambda m: m[1:], "its module 0"),
        ("modules.json", lambda m: [m[0], {**m[1], "path": "../x"}], "which is not in it"),
        ("modules.json", lambda m: {"a": m}, "not what sentence-transformers writes"),
        ("1_Pooling/config.json", lambda _: {"pooling_mode": "odd"}, "its pooling is odd"),
        (
            "2_Dense/config.json",
            lambda c: {**c, "activation_function": "os.system"},
            "activation function is 'os.system'",
        ),
        ("2_Dense/config.json", lambda c: {**c, "in_features": 7}, "takes 7 numbers"),
        ("2_Dense/config.json", lambda c: {**c, "out_features": 7}, "do not fit"),
        (
            "config_sentence_transformers.json",
            lambda c: {**c, "default_prompt_name": "q"},
            "none of its prompts",
        ),
    ],
)
def test_files_that_are_not_known_are_refused(
    tmp_path: Path, file: str, change: Callable[[Any], Any], message: str
) -> None:
    folder = save_encoder(tmp_path / "m", dense=[(8, "Tanh")])
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    with pytest.raises(UnsupportedModel, match=message):
        Encoder(str(folder), "embed")


def test_pickles_are_not_read(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m", dense=[(8, "Tanh")])
    shutil.move(folder / "2_Dense/model.safetensors", folder / "2_Dense/pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"2_Dense.*no model.safetensors"):
        Encoder(str(folder), "embed")

    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match="no safetensors weights"):
        Encoder(str(folder), "embed")


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 3}))

    with pytest.raises(UnsupportedModel, match="missing_keys"):
        Encoder(str(folder), "embed")


def test_the_fingerprint_tells_heads_apart(tmp_path: Path) -> None:
    folders = [
        save_encoder(tmp_path / "a"),
        save_encoder(tmp_path / "b", pooling={"pooling_mode_cls_token": True}),
        save_encoder(tmp_path / "c", dense=[(8, "Tanh")]),
        save_encoder(tmp_path / "d", dense=[(8, "GELU")]),
        save_encoder(tmp_path / "e", prompts={"q": "x"}),
        save_encoder(tmp_path / "f"),
    ]

    prints = [Encoder(str(folder), "embed").fingerprint for folder in folders]

    assert len(set(prints)) == 5
    assert prints[0] == prints[-1]
