"""The built-in model: its files load without a network, and it writes words it was taught."""

import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from roseinfer import InferenceEngine, SamplingParams, demo_model
from roseinfer.demo_model import MODEL_PATH
from tests.roseinfer.models import run_alone, text, tokens
from training import train
from training.stories import END, WORD, documents, stories, vocabulary

MIB = 1024 * 1024
PROMPTS = (
    "Once upon a time, there was a little fox",
    "A dog",
    "In the garden,",
    "Dear friend,",
    "The weather today",
)
QUESTIONS = ("Tell me a story about a cat.", "Where does the bear live?", "Hello!")


@pytest.fixture(scope="module")
def engine() -> InferenceEngine:
    return InferenceEngine(device="cpu", kv_cache_tokens=1024)


@pytest.fixture(scope="module")
def tokenizer(engine: InferenceEngine) -> Any:
    return engine.tokenizer


def answer(engine: InferenceEngine, prompt: str | list[int]) -> str:
    """What the model says after `prompt`. Fails if it does not end by itself."""
    outputs = run_alone(engine, prompt, SamplingParams(max_new_tokens=300))
    assert outputs[-1].finish_reason == "eos"
    return text(outputs)


def chat(engine: InferenceEngine, question: str) -> str:
    return answer(engine, engine.encode_chat([{"role": "user", "content": question}]))


def unknown_words(text: str) -> set[str]:
    return set(WORD.findall(text)) - vocabulary()


def test_the_path_is_known_without_any_machine_learning_library() -> None:
    # Given a fresh interpreter, when only the module that names the folder is run
    module = Path(demo_model.__file__)
    code = (
        f"import runpy, sys; path = runpy.run_path({str(module)!r})['MODEL_PATH']; "
        "print(path.is_dir(), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Then the folder is there and nothing heavy was imported
    assert done.stdout.split() == ["True", "False", "False"]


def test_the_folder_is_small_and_its_weights_are_safetensors() -> None:
    # Given the shipped folder
    files = [path for path in MODEL_PATH.iterdir() if path.is_file()]
    # When its files are counted, then it is small and nothing in it can run code on loading
    assert sum(path.stat().st_size for path in files) <= 6 * MIB
    assert [path.name for path in files if path.suffix == ".safetensors"] == ["model.safetensors"]
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".ckpt"}]


def test_configuration_and_tokenizer_agree(engine: InferenceEngine, tokenizer: Any) -> None:
    # Given the loaded files, then the sizes, the end token and the context are the same in all
    generation = engine.model.generation_config
    config = json.loads((MODEL_PATH / "config.json").read_text(encoding="utf-8"))
    assert tokenizer.is_fast
    assert config["vocab_size"] == len(tokenizer)
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == tokenizer.model_max_length == 1024
    assert tokenizer.eos_token == tokenizer.pad_token == END
    assert generation.eos_token_id == tokenizer.eos_token_id == config["eos_token_id"]
    assert generation.pad_token_id == tokenizer.pad_token_id
    assert not generation.do_sample


@pytest.mark.parametrize(
    "text", ["Once upon a time", " two  spaces\n\ttabs ", "na\u00efve \u732b \U0001f98a"]
)
def test_every_text_survives_encoding_and_decoding(tokenizer: Any, text: str) -> None:
    # Given any text, when it is encoded and decoded, then it is the same text
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chat_template_renders_roles_and_the_generation_prompt(tokenizer: Any) -> None:
    # Given a conversation
    messages = [
        {"role": "system", "content": "You tell short stories."},
        {"role": "user", "content": " Hello! "},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "A story, please."},
    ]
    # When it is rendered with and without the generation prompt
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    told = tokenizer.apply_chat_template(messages, tokenize=False)
    # Then only the prompt differs, and every marker is one token
    assert told == (
        "<|system|>You tell short stories.<|end|><|user|>Hello!<|end|>"
        "<|assistant|>Hello.<|end|><|user|>A story, please.<|end|>"
    )
    assert asked == told + "<|assistant|>"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert ids["input_ids"] == tokenizer(asked)["input_ids"]
    assert tokenizer.decode(ids["input_ids"][-1:]) == "<|assistant|>"


def test_chat_template_refuses_an_unknown_role(tokenizer: Any) -> None:
    # Given a message of a role that the model was never taught, then rendering it fails
    with pytest.raises(Exception, match="Unknown role"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "1"}], tokenize=False)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_whole_sentences_of_known_words(
    engine: InferenceEngine, prompt: str
) -> None:
    # Given an opening, when the model continues it
    story = prompt + answer(engine, prompt)
    # Then it consists of words the generator writes
    assert len(story.split()) >= 20
    assert unknown_words(story) == set()
    assert not re.search(r"\b(\w+) \1\b", story)
    # And every sentence starts with a capital letter and the last one is complete
    assert re.search(r'[.!?]"?$', story) or prompt.startswith("Dear")
    assert not re.findall(r'[.?!]"? "?[a-z]', re.sub(r'[?!]" [a-z]+', "", story))


@pytest.mark.parametrize("question", QUESTIONS)
def test_chat_answers_end_and_use_known_words(engine: InferenceEngine, question: str) -> None:
    # Given a user's message, when the model answers it greedily
    said = chat(engine, question)
    # Then the answer is a whole sentence of known words
    assert re.search(r'[.!?]"?$', said)
    assert unknown_words(said) == set()


def test_an_answer_repeats_what_the_question_names(engine: InferenceEngine) -> None:
    # Given questions whose answer is a fixed fact, or stands in the question: it is named
    assert "The bear lives in a cave in the forest." in chat(engine, "Where does the bear live?")
    ball = chat(engine, "The ball is behind the barn. Where is the ball?")
    assert ball == "The ball is behind the barn."


def test_stories_depend_on_the_seed_alone() -> None:
    # Given two runs with one seed and one with another
    first, again, other = stories(7, 20), stories(7, 20), stories(8, 20)
    # Then the seed decides the text, and every document ends, so that what learns from it ends too
    assert first == again != other
    written = list(islice(documents(3), 50))
    assert written == list(islice(documents(3), 50))
    assert all(document.text.endswith(END) for document in written)


def test_articles_agree_with_the_word_after_them() -> None:
    # Given many stories
    text = "\n".join(stories(11, 3000))
    # Then "an" stands before a vowel and nowhere else, and no field was left unfilled
    assert re.findall(r"\b[Aa] [aeiou]\w*", text) == []
    assert re.findall(r"\b[Aa]n [^aeiou]\w*", text) == []
    assert not set("{}") & set(text)


def test_stories_have_the_promised_length_and_keep_their_hero() -> None:
    for story in stories(5, 500):
        # Given a story, then it is neither a fragment nor endless
        assert 50 <= len(story.split()) <= 220, story
        # And somebody named in its first lines is still there in its second half
        names = set(re.findall(r"\b[A-Z][a-z]+\b", " ".join(story.split()[:35])))
        assert any(name in story[len(story) // 2 :] for name in names), story


def test_training_writes_files_that_load(tmp_path: Path) -> None:
    # Given a training run of two steps
    out = tmp_path / "model"
    sizes = "--drill 1 --steps 2 --tokens 512 --texts 300 --vocab 400 --layers 1"
    train.main(["--out", str(out), "--no-bf16", *sizes.split()])
    # When its folder is loaded, then it is a whole model: text can be generated, and chats encoded
    engine = InferenceEngine(out, device="cpu", kv_cache_tokens=256)
    assert json.loads((out / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"
    assert engine.vocab_size == len(engine.tokenizer)
    assert engine.encode_chat([{"role": "user", "content": "Hello!"}])
    assert tokens(run_alone(engine, "The fox", SamplingParams(max_new_tokens=3)))
