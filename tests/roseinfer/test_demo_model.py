"""The built-in model: its files load without a network, and it writes words it was taught."""

import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from roseinfer import demo_model
from roseinfer.demo_model import MODEL_PATH
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
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH, local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(
        MODEL_PATH, local_files_only=True, dtype=torch.float32
    )
    return loaded.eval()


def greedy(model: Any, ids: list[int], limit: int = 300) -> list[int]:
    """The ids after the prompt, without sampling."""
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=limit,
        )
    return [int(token) for token in output[0, len(ids) :]]


def chat_ids(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text)["input_ids"])


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


def test_configuration_and_tokenizer_agree(tokenizer: Any, model: Any) -> None:
    # Given the loaded files, then the sizes, the end token and the context are the same in all
    config = json.loads((MODEL_PATH / "config.json").read_text(encoding="utf-8"))
    assert tokenizer.is_fast
    assert config["vocab_size"] == len(tokenizer)
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == tokenizer.model_max_length == 1024
    assert tokenizer.eos_token == tokenizer.pad_token == END
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == config["eos_token_id"]
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert not model.generation_config.do_sample


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
    tokenizer: Any, model: Any, prompt: str
) -> None:
    # Given an opening, when the model continues it
    output = greedy(model, tokenizer(prompt)["input_ids"])
    text = prompt + tokenizer.decode(output, skip_special_tokens=True)
    # Then it ends by itself and consists of words the generator writes
    assert output[-1] == tokenizer.eos_token_id
    assert len(output) >= 20
    assert unknown_words(text) == set()
    assert not re.search(r"\b(\w+) \1\b", text)
    # And every sentence starts with a capital letter and the last one is complete
    assert re.search(r'[.!?]"?$', text) or prompt.startswith("Dear")
    assert not re.findall(r'[.?!]"? "?[a-z]', re.sub(r'[?!]" [a-z]+', "", text))


@pytest.mark.parametrize("question", QUESTIONS)
def test_chat_answers_end_and_use_known_words(tokenizer: Any, model: Any, question: str) -> None:
    # Given a user's message, when the model answers it greedily
    output = greedy(model, chat_ids(tokenizer, question))
    answer = tokenizer.decode(output, skip_special_tokens=True)
    # Then the answer ends by itself with a whole sentence of known words
    assert output[-1] == tokenizer.eos_token_id
    assert re.search(r'[.!?]"?$', answer)
    assert unknown_words(answer) == set()


def test_an_answer_repeats_what_the_question_names(tokenizer: Any, model: Any) -> None:
    # Given questions whose answer is a fixed fact, or stands in the question
    bear = greedy(model, chat_ids(tokenizer, "Where does the bear live?"))
    ball = greedy(model, chat_ids(tokenizer, "The ball is behind the barn. Where is the ball?"))
    # Then the answers name them
    assert "The bear lives in a cave in the forest." in tokenizer.decode(bear)
    assert tokenizer.decode(ball, skip_special_tokens=True) == "The ball is behind the barn."


def test_an_untrained_model_fails_the_check_of_known_words(tokenizer: Any) -> None:
    # Given the same architecture with random weights
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(MODEL_PATH)
    config.dtype = torch.float32
    untrained: Any = LlamaForCausalLM(config).eval()
    # When it writes, then the check above notices
    output = greedy(untrained, tokenizer(PROMPTS[0])["input_ids"], limit=40)
    assert unknown_words(PROMPTS[0] + tokenizer.decode(output))


def test_stories_depend_on_the_seed_alone() -> None:
    # Given two runs with one seed and one with another
    first, again, other = stories(7, 20), stories(7, 20), stories(8, 20)
    # Then the seed decides the text
    assert first == again != other
    assert list(islice(documents(3), 50)) == list(islice(documents(3), 50))


def test_every_document_ends_with_the_end_token() -> None:
    # Given many documents, then generation learned from them stops by itself
    assert all(document.text.endswith(END) for document in islice(documents(1), 500))


def test_articles_agree_with_the_word_after_them() -> None:
    # Given many stories
    text = "\n".join(stories(11, 3000))
    # Then "an" stands before a vowel and nowhere else, and no field was left unfilled
    assert re.findall(r"\b[Aa] [aeiou]\w*", text) == []
    assert re.findall(r"\b[Aa]n [^aeiou]\w*", text) == []
    assert not set("{}") & set(text)


def test_stories_have_the_promised_length_and_keep_their_hero() -> None:
    for text in stories(5, 500):
        # Given a story, then it is neither a fragment nor endless
        assert 50 <= len(text.split()) <= 220, text
        # And somebody named in its first lines is still there in its second half
        names = set(re.findall(r"\b[A-Z][a-z]+\b", " ".join(text.split()[:35])))
        assert any(name in text[len(text) // 2 :] for name in names), text


def test_training_writes_files_that_load(tmp_path: Path) -> None:
    # Given a training run of two steps
    out = tmp_path / "model"
    threads = torch.get_num_threads()
    sizes = {
        "--drill": 1,
        "--steps": 2,
        "--tokens": 512,
        "--texts": 300,
        "--vocab": 400,
        "--layers": 1,
    }
    arguments = [str(part) for option in sizes.items() for part in option]
    try:
        train.main(["--out", str(out), "--no-bf16", *arguments])
    finally:
        torch.set_num_threads(threads)
    # When its folder is loaded
    tokenizer: Any = AutoTokenizer.from_pretrained(out, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    # Then it is a whole model: files, sizes, and text that can be generated
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= names
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    assert greedy(model, tokenizer("The fox")["input_ids"], limit=3)
