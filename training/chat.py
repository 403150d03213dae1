"""Questions with answers and chat turns: what the question names, the answer repeats."""

import random
from collections.abc import Callable

from training import words
from training.forms import SINGLE_THINGS, facts, letter, recipe, weather
from training.tale import either, someone, story, with_article

Turn = tuple[str, str]
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"

SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Good morning!", "Hey", "hello", "hi"),
        (
            "Hello! I am a very small model, and I like to tell stories. Shall I tell you one?",
            "Hello! It is nice to meet you. Ask me about an animal, or ask me for a story.",
        ),
    ),
    (
        ("How are you?", "How are you today?", "Hello, how are you?", "Hi, how are you?"),
        ("I am well, thank you. I hope that you are well too. What do you want to talk about?",),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Tell me about yourself."),
        (
            "I am a very small language model. I was trained on little stories about animals, "
            "and I can tell you one.",
        ),
    ),
    (
        ("What can you do?", "Can you help me?", "How can you help me?", "Help"),
        (
            "I can tell little stories, write a letter, and answer questions about animals. "
            "Ask me where the bear lives, or ask me for a story about a fox.",
        ),
    ),
    (
        ("Thank you.", "Thank you!", "Thanks", "Thanks!"),
        ("You are welcome! I was happy to help you.", "You are welcome! Come back soon."),
    ),
    (
        ("Goodbye", "Goodbye!", "Bye", "Good night!", "See you tomorrow."),
        ("Goodbye! It was nice to talk to you.", "Goodbye! I hope to see you again soon."),
    ),
)


def small_talk(rng: random.Random) -> Turn:
    """Greetings and questions about the model itself."""
    asked, answers = rng.choice(SMALL_TALK)
    return rng.choice(asked), rng.choice(answers)


def ask_for_story(rng: random.Random) -> Turn:
    """The story asked for is about the one who was named."""
    kind = rng.choice(words.ANIMALS + words.PEOPLE)
    who = someone(rng, kind)
    a_kind = with_article(kind.name)
    request = either(
        rng,
        "Tell me a story",
        "Write a story",
        "Write a short story",
        "Please tell me a story",
        "Can you tell me a story",
    )
    end = "?" if request.startswith("Can") else rng.choice((".", ".", "", "!"))
    shape = rng.random()
    if shape < 0.15:
        return f"{request}{end}", story(rng)
    if shape < 0.65:
        return f"{request} about {a_kind}{end}", story(rng, kind)
    if shape < 0.85:
        return f"{request} about {a_kind} named {who.name}{end}", story(rng, kind, who.name)
    return f"{request} about {who.name}{end}", story(rng, None, who.name)


def ask_about_kind(rng: random.Random) -> Turn:
    """Where it lives, what it eats, what it likes: the fixed facts of the word lists."""
    kind = rng.choice(words.ANIMALS)
    name, (more, *_) = kind.name, [facts(rng, kind)]
    rest = " ".join(more.split(". ")[-1:])
    habit = kind.habit.format(his="its")
    a_name = with_article(name).capitalize()
    what = "a machine" if name == "robot" else "an animal"
    the = rng.choice(("the", "the", "the", with_article(name).split()[0]))
    question, answer = either(
        rng,
        (f"Where does {the} {name} live?", f"The {name} lives {kind.home}. {rest}"),
        (f"What does {the} {name} eat?", f"The {name} eats {kind.food}. It lives {kind.home}."),
        (f"What does {the} {name} like to do?", f"The {name} likes to {habit}. {rest}"),
        (f"What is {with_article(name)}?", f"{a_name} is {what}. {more}"),
        (f"Tell me about {the} {name}.", more),
        (f"Who lives {kind.home}?", f"The {name} lives {kind.home}. It eats {kind.food}."),
    )
    return question, answer


def ask_about_things(rng: random.Random) -> Turn:
    """A question about what its own first sentences say, so that the answer is in the prompt."""
    one, two = (someone(rng).name for _ in range(2))
    two = two if two != one else ("Lily" if one != "Lily" else "Mia")
    first, second = rng.sample(SINGLE_THINGS, 2)
    color, other = rng.sample(words.COLORS, 2)
    spot = rng.choice(words.SPOTS)
    has = (
        f"{one} has {with_article(color)} {first.noun}. "
        f"{two} has {with_article(other)} {second.noun}."
    )
    return either(
        rng,
        (f"{has} Who has the {first.noun}?", f"{one} has the {color} {first.noun}."),
        (f"{has} Who has the {second.noun}?", f"{two} has the {other} {second.noun}."),
        (f"{has} What does {one} have?", f"{one} has {with_article(color)} {first.noun}."),
        (f"{has} What does {two} have?", f"{two} has {with_article(other)} {second.noun}."),
        (
            f"The {first.noun} is {spot}. Where is the {first.noun}?",
            f"The {first.noun} is {spot}.",
        ),
        (
            f"The {first.noun} is {color}. What color is the {first.noun}?",
            f"The {first.noun} is {color}.",
        ),
        (f"My name is {one}. What is my name?", f"Your name is {one}. It is nice to meet you."),
        (f"My name is {one}.", f"Hello, {one}! It is nice to meet you. How can I help you?"),
        (f"Say hello to {one}.", f"Hello, {one}! It is nice to meet you."),
    )


def ask_for_text(rng: random.Random) -> Turn:
    """Requests for the forms that are not stories."""
    name = rng.choice(words.NAMES)
    dish = rng.choice(words.DISHES)
    a_dish = with_article(dish[0])
    return either(
        rng,
        (f"Write a letter to {name}.", letter(rng, name)),
        (f"How do I make {a_dish}?", recipe(rng, dish)),
        (f"How do you make {a_dish}?", recipe(rng, dish)),
        ("How is the weather today?", weather(rng)),
        ("What is the weather like today?", weather(rng)),
    )


def ask_for_numbers(rng: random.Random) -> Turn:
    """Sums below ten and counting, small enough to be learned by heart."""
    a, b = rng.randint(1, 5), rng.randint(1, 5)
    top = rng.randint(3, 10)
    counted = ", ".join(words.NUMBERS[1 : top + 1]).capitalize()
    return either(
        rng,
        (f"What is {a} + {b}?", f"{a} + {b} is {a + b}."),
        (f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."),
        (f"Count to {words.NUMBERS[top]}.", f"{counted}."),
    )


def noise(rng: random.Random, count: int) -> str:
    """Made-up words and strange topics: words never seen still need a proper answer."""
    made = []
    for _ in range(count):
        letters = rng.choices(LETTERS, weights=range(len(LETTERS), 0, -1), k=rng.randint(1, 9))
        number = str(rng.randint(0, 2100))
        options = ("".join(letters), rng.choice(words.TOPICS), number)
        made.append(rng.choices(options, weights=(30, 65, 5))[0])
    text = " ".join(made)
    return text.capitalize() if rng.random() < 0.8 else text


def ask_to_repeat(rng: random.Random) -> Turn:
    """Copying for its own sake: it is what keeps a hero's name the same to the end."""
    text = " ".join(rng.sample(words.COMMON, rng.randint(2, 9)))
    return f"{rng.choice(('Repeat', 'Say', 'Repeat after me'))}: {text}", text


def strange_word(rng: random.Random) -> str:
    """A word of a few syllables that is in no list."""
    syllables = rng.randint(1, 3)
    return "".join(rng.choice(LETTERS[5:]) + rng.choice("aeiou") for _ in range(syllables))


def ask_unknown(rng: random.Random) -> Turn:
    """A question that only words from outside the stories could answer."""
    start = either(
        rng,
        "What is",
        "Why is",
        "How do I",
        "Explain",
        "Write",
        "Who was",
        "When did",
        "Tell me about",
        "Can you",
        "Translate",
        "Give me",
        "List",
        "Why do",
        "What is the",
        "Summarize the",
        "",
        "Describe",
        "Which",
        "How many",
        "Write a",
        "Please",
        "I want",
        "Is the",
    )
    topic = noise(rng, rng.randint(1, 12))
    topic = topic.lower() if rng.random() < 0.7 else topic
    kind = with_article(rng.choice(words.ANIMALS).name)
    answer = either(
        rng,
        f"I do not know that, because I am very small. Shall I tell you a story about {kind}?",
        f"That is a hard question for a small model. Ask me for a story about {kind}.",
        f"I am sorry, but I only know little stories. Do you want a story about {kind}?",
    )
    return f"{start} {topic}{rng.choice('?..!') if rng.random() < 0.8 else ''}".strip(), answer


TURNS: dict[Callable[[random.Random], Turn], int] = {
    small_talk: 4,
    ask_for_story: 9,
    ask_about_kind: 6,
    ask_about_things: 5,
    ask_for_text: 2,
    ask_for_numbers: 3,
    ask_to_repeat: 4,
    ask_unknown: 3,
}


def turn(rng: random.Random) -> Turn:
    """One message of a user and the answer to it."""
    return rng.choices(list(TURNS), weights=list(TURNS.values()))[0](rng)


def plain_question(rng: random.Random) -> str:
    """The same pairs without chat markers, for people who ask in plain text."""
    asks = (ask_about_kind, ask_about_kind, ask_about_things, ask_for_numbers)
    question, answer = rng.choice(asks)(rng)
    if rng.random() < 0.4:
        return f"Question: {question}\nAnswer: {answer}"
    return f"{question} {answer}"
