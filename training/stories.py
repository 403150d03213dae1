"""Writes the training text: tiny stories, other simple forms, questions and chats, by seed."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from training import words
from training.chat import noise, plain_question, strange_word, turn
from training.forms import other_text
from training.tale import story, with_article

END = "<|end|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SYSTEM = "<|system|>"
SPECIAL_TOKENS = (END, USER, ASSISTANT, SYSTEM)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You tell short stories.",
    "You are a friendly storyteller. Answer in simple words.",
    "Answer briefly.",
)
WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Document:
    """A training text: the model reads the prompt and learns to write the text after it."""

    prompt: str
    text: str


def plain_text(rng: random.Random) -> str:
    """One complete text without markers."""
    draw = rng.random()
    if draw < 0.62:
        return story(rng)
    return other_text(rng) if draw < 0.9 else plain_question(rng)


def plain(rng: random.Random) -> Document:
    """A text from its first character on, as most prompts begin one."""
    return Document("", plain_text(rng) + END)


def cut(rng: random.Random) -> Document:
    """A text continued from any character, since a prompt may stop inside a word."""
    text = plain_text(rng)
    at = rng.randint(1, max(1, len(text) // 2))
    return Document(text[:at], text[at:] + END)


def after_noise(rng: random.Random) -> Document:
    """A text after words that are in no story, for prompts the grammar never wrote."""
    head = noise(rng, rng.choice((1, 2, 3, 5, 8, 12, 30)))
    gap = rng.choice((" ", ". ", "\n", "? ", ": ", ", ")).rstrip(" ")
    return Document(head + gap, rng.choice((" ", "\n", "\n\n")) + story(rng) + END)


def after_others(rng: random.Random) -> Document:
    """Several texts in a row, so that a long prompt is nothing new to the positions."""
    gap = rng.choice((END, END, "\n\n"))
    head = gap.join(plain_text(rng) for _ in range(rng.randint(1, 4)))
    return Document("", head + gap + plain_text(rng) + END)


def strange_hero(rng: random.Random) -> Document:
    """A hero whose name or kind only the prompt says, so that the model learns to copy it."""
    word = strange_word(rng) + rng.choice(("", "n", "x", "l", "r", "ck", "s"))
    if rng.random() < 0.5:
        name = word.capitalize()
        kind = rng.choice(words.ANIMALS)
        text = story(rng, kind, name) + END
        at = text.index(name) + len(name)
        request = f"Tell me a story about {with_article(kind.name)} named {name}."
    else:
        kind = replace(rng.choice(words.ANIMALS), name=word)
        text = story(rng, kind) + END
        at = text.index(word) + len(word)
        request = f"Tell me a story about {with_article(word)}."
    if rng.random() < 0.5:
        return Document(f"{USER}{request}{END}{ASSISTANT}", text)
    return Document(text[:at], text[at:])


def conversation(rng: random.Random) -> Document:
    """One to six turns in the format of the chat template."""
    turns = [turn(rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3, 4, 6)))]
    head = f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{END}" if rng.random() < 0.3 else ""
    asked = [f"{USER}{question}{END}{ASSISTANT}{answer}{END}" for question, answer in turns[:-1]]
    question, answer = turns[-1]
    head += "".join(asked) + f"{USER}{question}{END}{ASSISTANT}"
    return Document(head, answer + END)


KINDS = {plain: 46, cut: 8, after_noise: 5, after_others: 4, strange_hero: 5, conversation: 32}


def documents(seed: int) -> Iterator[Document]:
    """An endless stream of documents that depends on nothing but the seed."""
    rng = random.Random(seed)  # noqa: S311  (a reproducible text, not a secret)
    kinds, weights = list(KINDS), list(KINDS.values())
    while True:
        yield rng.choices(kinds, weights=weights)[0](rng)


def stories(seed: int, count: int) -> list[str]:
    """Only the stories, for whoever checks the grammar or wants sample prompts."""
    rng = random.Random(seed)  # noqa: S311
    return [story(rng) for _ in range(count)]


@cache
def vocabulary() -> frozenset[str]:
    """Every word the generator writes itself; made-up prompt words are not among them."""
    rng = random.Random(0)  # noqa: S311
    texts = [plain_text(rng) for _ in range(6000)] + [turn(rng)[1] for _ in range(6000)]
    return frozenset(word for text in texts for word in WORD.findall(text))
