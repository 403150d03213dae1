"""The texts that are not stories: letters, facts, diaries, weather, counting and questions."""

import random
from collections.abc import Callable

from training import words
from training.tale import Someone, either, someone, story_fields, tell, with_article
from training.words import Kind

SINGLE_THINGS = tuple(thing for thing in words.THINGS if not thing.plural)
LANDMARKS = ("house", "shop", "boat", "tree", "bridge", "garden", "tower", "train")
LANDMARK_LOOKS = ("small", "big", "old", "little", "white", "red", "quiet", "strange")
SEASONS = ("spring", "summer", "autumn", "winter")
WEATHER = ("sunny", "cloudy", "windy", "rainy", "warm", "cold", "foggy", "bright")
WHAT_TO_DO = (
    "It is a good day to fly a kite.",
    "It is a good day to stay at home and read a book.",
    "You should wear a warm scarf.",
    "It is a good day for a walk in the park.",
)
UMBRELLA = "You should take an umbrella with you."


def facts(rng: random.Random, kind: Kind | None = None) -> str:
    """What is always true of a kind, in the words that answers about it use too."""
    kind = kind or rng.choice(words.ANIMALS + words.PEOPLE)
    who = Someone(kind, "", kind.gender == "f")
    he = who.pronouns[0] if kind in words.PEOPLE else "it"
    his = who.pronouns[2] if kind in words.PEOPLE else "its"
    habit = kind.habit.format(his=his)
    lines = [
        rng.choice(
            (f"The {kind.name} lives {kind.home}.",) * 2
            + (f"{with_article(kind.name).capitalize()} lives {kind.home}.",)
        ),
        rng.choice((f"{he} eats {kind.food}.", f"{he} likes to eat {kind.food}.")).capitalize(),
        rng.choice((f"{he} likes to {habit}.", f"{he} loves to {habit}.")).capitalize(),
    ]
    if kind.skill:
        skill = words.HINDRANCE[kind.skill][1]
        lines.append(
            either(
                rng,
                f"The {kind.name} can {skill} very well.",
                f"{he} can {skill} better than most others.".capitalize(),
            )
        )
    return " ".join(lines)


def landmark(rng: random.Random) -> str:
    """A text about a thing in a place, for openings such as "There was a small"."""
    fields = story_fields(rng, someone(rng))
    noun, look = rng.choice(LANDMARKS), rng.choice(LANDMARK_LOOKS)
    fields.update({"mark": noun, "a_mark": with_article(f"{look} {noun}")})
    return tell(
        rng,
        fields,
        ("There was {a_mark} {in_place}.", "{In_place} there was {a_mark}."),
        (
            "Nobody knew how old the {mark} was.",
            "Everybody knew the {mark}.",
            "Every day, people came to see the {mark}.",
        ),
        (
            "One day, {hero} the {kind} came to the {mark}.",
            "{Hero} the {kind} liked the {mark} very much.",
        ),
        (
            "{Spot}, {he} found {a_thing} and took {it} home.",
            "There {he} met {a_pal} and gave {phim} some {pfood}.",
        ),
        (
            "After that, {hero} came back to the {mark} every week.",
            "{Hero} never forgot the {mark}.",
        ),
    )


def letter(rng: random.Random, to: str = "") -> str:
    """A letter whose writer signs it, and whose friend is named once."""
    writer = someone(rng)
    fields = story_fields(rng, writer)
    friend = to or rng.choice(("friend", rng.choice(words.NAMES), "grandmother"))
    body = tell(
        rng,
        fields,
        (
            "How are you? I am well.",
            "Thank you for your kind letter.",
            "I hope that you are well.",
            "It has been a long time since I saw you.",
        ),
        (
            "Yesterday I was {in_place}, and I found {a_thing} {spot}.",
            "Last week I met {a_pal} {in_place}. {Phis} name is {pname}.",
            "On Sunday we made {a_dish}. We had to look for {ingredient} {in_place}.",
        ),
        (
            "{Sky} I thought of you.",
            "I was so happy that I wanted to tell you about it.",
            "It was the best day of the week.",
        ),
        (
            "Please come and visit me soon. We can eat {food} together.",
            "Will you write to me again?",
            "I will send you {a_thing} for your birthday.",
        ),
    )
    close = rng.choice(("Your friend,", "With love,", "Best wishes,"))
    return f"Dear {friend},\n\n{body}\n\n{close}\n{writer.name}"


def diary(rng: random.Random) -> str:
    """A first-person text, for prompts such as "I" and "My name is"."""
    fields = story_fields(rng, someone(rng, rng.choice(words.PEOPLE[:2] + words.ANIMALS)))
    return tell(
        rng,
        fields,
        (
            "My name is {hero}. I am {a_trait} {kind}, and I live {home}.",
            "I am {hero} the {kind}. I live {home}.",
            "I am {a_trait} {kind}. My name is {hero}.",
            "Hello, my name is {hero}. I live {home}.",
        ),
        (
            "Today I went for a walk {in_place}.",
            "Yesterday I was {in_place}.",
            "I like {food}, and I love to play {in_place}.",
        ),
        ("{Sky}", "I was very happy.", ""),
        (
            "I found {a_thing} {spot}, and I took {it} home.",
            "I met {a_pal} named {pname}, and we played until the evening.",
            "I made {a_dish} with fresh {ingredient}, and it was very good.",
        ),
        (
            "I showed everything to my friend {pname}.",
            "My friend {pname} came to visit me, and we ate {food}.",
            "In the evening, I told my mother about it.",
        ),
        (
            "I can not wait for tomorrow.",
            "Now I am tired, and I will go to sleep.",
            "It was a good day.",
        ),
    )


def day(rng: random.Random) -> str:
    """A short account of somebody's day, for openings that name a time and not a hero."""
    fields = story_fields(rng, someone(rng))
    return tell(
        rng,
        fields,
        (
            "Today {hero} the {kind} went for a walk {in_place}.",
            "Yesterday, {hero} the {kind} was {in_place}.",
            "Last night, {hero} the {kind} had a dream. In the dream, {he} was {in_place}.",
            "Every day, {hero} the {kind} sat {spot} and ate {food}.",
            "After the rain, {hero} the {kind} went outside.",
            "In the morning, {hero} the {kind} was very {mood}.",
            "She was looking for {a_thing}. Her name was Anna.",
            "He was looking for {a_thing}. His name was Tom.",
            "It was late in the evening, and {hero} the {kind} was {mood}.",
            "We all know {hero} the {kind}, who lives {home}.",
            "At night, {hero} the {kind} looked at the stars.",
        ),
        ("{Sky}", ""),
        (
            "{Pname} the {pal} was there too, and they shared some {pfood}.",
            "{Spot}, there {was} {a_thing}.",
            "{Pname} the {pal} told a funny story, and everybody laughed.",
        ),
        (
            '"What a good day," said {pname}.',
            '"I am hungry," said {pname}. "Let us make {a_dish}."',
            '"Look at the moon," said {pname}. "It is so bright."',
            "",
        ),
        (
            "Then they went home and had something warm to drink.",
            "When it was dark, they went to bed.",
            "In the end, everybody was happy.",
        ),
    )


def pair(rng: random.Random) -> str:
    """Two friends from the first sentence on, for openings that name both."""
    fields = story_fields(rng, someone(rng))
    return tell(
        rng,
        fields,
        (
            "{Hero} and {pname} were good friends. They often played {in_place}.",
            "On Monday, {hero} and {pname} met {in_place}.",
            "{Hero} the {kind} and {pname} the {pal} lived next to each other.",
            "One {time}, {hero} and {pname} walked home together.",
        ),
        (
            "They found {a_thing} {spot}.",
            "{Spot}, there {was} {a_thing}.",
            "On the way, they saw {a_thing} {spot}.",
        ),
        (
            '"I saw {it} first," said {hero}. "No, I did," said {pname}.',
            '"Can I have {it}?" asked {pname}. "We can share {it}," said {hero}.',
            '"{Theyre} very pretty," said {pname}.',
            "They did not know whose {thing} {they} {was}.",
        ),
        (
            "So they took {the_thing} home and played together.",
            "In the end, {pname} gave {the_thing} to {hero}.",
            "They put {the_thing} in a safe place {in_place}.",
        ),
        (
            "{Hero} and {pname} never argued again.",
            "After that, {hero} and {pname} were even better friends.",
            "Then they ate {food} and were happy.",
        ),
    )


def weather(rng: random.Random) -> str:
    """A weather report in the present tense."""
    first, second, third = rng.sample(WEATHER, 3)
    place, season = rng.choice(words.PLACES), rng.choice(SEASONS)
    opening = rng.choice(("The weather today is", "Today the weather is"))
    return " ".join(
        (
            f"{opening} {first} in the morning and {second} in the afternoon.",
            either(
                rng,
                f"In the evening, it will be {third}.",
                f"Tomorrow it will be {third} {place}.",
                f"The wind comes from the sea, and it is {third} {place}.",
            ),
            UMBRELLA if "rainy" in (first, second) else rng.choice(WHAT_TO_DO),
            rng.choice((f"It feels like {season}.", f"The {season} is almost over.", "")),
        )
    ).strip()


def countdown(rng: random.Random) -> str:
    """Counting down by one, where the last number is one and the noun turns singular."""
    kind = rng.choice(("duck", "bird", "frog", "cat", "rabbit", "hen", "bee", "dog"))
    start, place = rng.randint(2, 5), rng.choice(words.PLACES)
    lines = [f"{words.NUMBERS[start]} little {kind}s sat {place}.".capitalize()]
    for left in range(start - 1, 0, -1):
        noun, verb = (kind, "was") if left == 1 else (f"{kind}s", "were")
        lines.append(f"One {kind} went home, and there {verb} {words.NUMBERS[left]} {noun} left.")
    lines.append(f"The last {kind} was tired and went home too.")
    return " ".join(lines)


def recipe(rng: random.Random, dish: tuple[str, str] | None = None) -> str:
    """Simple steps, for openings such as "To make"."""
    name, ingredient = dish or rng.choice(words.DISHES)
    start = f"To make {with_article(name)}, you need {ingredient}, water and a big bowl."
    return " ".join(
        (
            start,
            rng.choice((f"First, wash the {ingredient}.", f"First, cut the {ingredient}.")),
            rng.choice(("Then put them into the bowl.", "Then add the water and stir well.")),
            rng.choice((f"Wait until the {name} is hot.", f"Let the {name} cook for one hour.")),
            rng.choice(("Share it with a friend.", "It tastes best when it is warm.")),
        )
    )


FORMS: dict[Callable[[random.Random], str], int] = {
    facts: 3,
    landmark: 3,
    letter: 4,
    diary: 4,
    day: 4,
    pair: 4,
    weather: 2,
    countdown: 3,
    recipe: 1,
}


def other_text(rng: random.Random) -> str:
    """One text that is not a story."""
    form = rng.choices(list(FORMS), weights=list(FORMS.values()))[0]
    return form(rng)
