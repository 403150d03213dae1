"""Builds one story: who is in it is drawn once, so that the end agrees with the beginning."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from training import words
from training.plots import CLOSINGS, OPENINGS, PLOTS, Beat
from training.words import Kind, Thing

T = TypeVar("T")
HEROES = 18
"""How many names of either list are names of heroes."""
GOALS = ("river", "old mill", "big tree", "hill", "bridge", "lake", "village", "stone wall")
MOODS = ("happy", "hungry", "tired", "cheerful", "busy", "sleepy", "proud")
SOUNDS_LIKE_A_VOWEL = tuple("aeiou")


def with_article(noun: str) -> str:
    """The lists hold no word like "hour" or "unicorn", so the first letter decides."""
    return f"an {noun}" if noun.lower().startswith(SOUNDS_LIKE_A_VOWEL) else f"a {noun}"


def either(rng: random.Random, *options: T) -> T:
    return rng.choice(options)


def favored(rng: random.Random, options: Sequence[T], key: str) -> T:
    """Often the same choice for the same key.

    With even odds everywhere the likeliest text would be one and the same for every prompt, and
    the likeliest name would serve for everybody in it.
    """
    if rng.random() < 0.4:
        return options[zlib.crc32(key.encode()) % len(options)]
    return rng.choice(options)


class Fields(dict[str, str]):
    """Template fields; a field asked for with a capital letter is given with one."""

    def __missing__(self, key: str) -> str:
        value = self[key[0].lower() + key[1:]] if key[0].isupper() else None
        if value is None:
            raise KeyError(key)
        return value[0].upper() + value[1:]

    def fill(self, template: str) -> str:
        """Fill one wording, and once more where a value has fields of its own."""
        text = template.format_map(self)
        return text.format_map(self) if "{" in text else text


@dataclass(frozen=True, slots=True)
class Someone:
    """A named character with the pronouns that must stay the same for a whole text."""

    kind: Kind
    name: str
    female: bool

    @property
    def pronouns(self) -> tuple[str, str, str]:
        return ("she", "her", "her") if self.female else ("he", "him", "his")


def someone(rng: random.Random, kind: Kind | None = None, *, besides: str = "") -> Someone:
    """Draw a character whose name differs from the one already in the text.

    A second character has a name from the end of the list and a first one does not: the likeliest
    name of a friend is then never the likeliest name of a hero.
    """
    kind = kind or rng.choice(words.ANIMALS if rng.random() < 0.75 else words.PEOPLE)
    female = kind.gender == "f" if kind.gender else favored(rng, (True, False), kind.name)
    every = words.GIRL_NAMES if female else words.BOY_NAMES
    names = every[HEROES:] if besides else every[:HEROES]
    names = tuple(name for name in names if name != besides)
    return Someone(kind, favored(rng, names, kind.name), female)


def called(rng: random.Random, kind: Kind | None, name: str) -> Someone:
    """The one with that name; its kind may not contradict it, as a queen named Tom would."""
    gender = rng.choice(("f", "m"))
    if name in words.NAMES:
        gender = "f" if name in words.GIRL_NAMES else "m"
    kinds = [k for k in words.ANIMALS + words.PEOPLE if k.gender in (None, gender)]
    if kind is None:
        kind = rng.choice(kinds)
    return Someone(kind, name, (kind.gender or gender) == "f")


def looked_at(rng: random.Random, thing: Thing) -> str:
    """A noun with at most two adjectives, in the order in which English puts them."""
    color = favored(rng, words.COLORS, thing.noun)
    look = favored(rng, words.LOOKS, thing.noun)
    return rng.choice(
        (f"{color} {thing.noun}", f"{look} {thing.noun}", f"{look} {color} {thing.noun}")
    )


def thing_fields(rng: random.Random, kind: Kind) -> dict[str, str]:
    """Everything that has to agree with the number of the thing."""
    thing = favored(rng, words.THINGS, kind.name)
    text = looked_at(rng, thing)
    fields = {"thing": text, "the_thing": f"the {text}"}
    if thing.plural:
        return fields | {
            "a_thing": f"some {text}",
            "it": "them",
            "they": "they",
            "theyre": "they are",
            "was": "were",
            "is": "are",
        }
    return fields | {
        "a_thing": with_article(text),
        "it": "it",
        "they": "it",
        "theyre": "it is",
        "was": "was",
        "is": "is",
    }


def person_fields(hero: Someone, pal: Someone, trait: str, pal_trait: str) -> dict[str, str]:
    """The names and pronouns of the two characters."""
    he, him, his = hero.pronouns
    phe, phim, phis = pal.pronouns
    return {
        "hero": hero.name,
        "kind": hero.kind.name,
        "a_kind": with_article(hero.kind.name),
        "trait": trait,
        "a_trait": with_article(trait),
        "home": hero.kind.home,
        "food": hero.kind.food,
        "habit": hero.kind.habit,
        "he": he,
        "him": him,
        "his": his,
        "pname": pal.name,
        "pal": pal.kind.name,
        "a_pal": with_article(f"{pal_trait} {pal.kind.name}" if pal_trait else pal.kind.name),
        "a_kindpal": with_article(pal.kind.name),
        "pfood": pal.kind.food,
        "phe": phe,
        "phim": phim,
        "phis": phis,
    }


def scene_fields(rng: random.Random, kind: Kind) -> dict[str, str]:
    """Where and when it happens, and what is cooked there."""
    spot, spot2, spot3 = rng.sample(words.SPOTS, 3)
    dish, ingredient = favored(rng, words.DISHES, kind.name)
    return {
        "in_place": favored(rng, words.PLACES, kind.name),
        "sky": rng.choice(words.SKIES),
        "time": rng.choice(words.TIMES),
        "mood": favored(rng, MOODS, kind.name),
        "goal": favored(rng, GOALS, kind.name),
        "spot": spot,
        "spot2": spot2,
        "spot3": spot3,
        "dish": dish,
        "a_dish": with_article(dish),
        "ingredient": ingredient,
    }


def story_fields(rng: random.Random, hero: Someone) -> Fields:
    """Draw everything a story needs; a helper is drawn from those who can help."""
    name = hero.kind.name
    skill = favored(rng, sorted(words.HINDRANCE), name)
    helpers = [k for k in words.ANIMALS if k.skill == skill and k is not hero.kind]
    pal = someone(rng, favored(rng, helpers, name), besides=hero.name)
    trait = favored(rng, words.TRAITS, name)
    pal_trait = favored(rng, ["", *words.TRAITS], pal.kind.name)
    where, verb, rescue = words.HINDRANCE[skill]
    fields = Fields(person_fields(hero, pal, trait, pal_trait))
    fields.update(thing_fields(rng, hero.kind) | scene_fields(rng, hero.kind))
    fields.update({"block": where, "skill": verb, "rescue": rescue})
    return fields


def tell(rng: random.Random, fields: Fields, *beats: Beat) -> str:
    """Draw one wording of every beat and join what is not empty."""
    wordings = (rng.choice(beat) for beat in beats)
    return " ".join(fields.fill(wording) for wording in wordings if wording)


def story(rng: random.Random, kind: Kind | None = None, name: str = "") -> str:
    """A whole story, about a given kind of character or a given name where one is asked for."""
    hero = called(rng, kind, name) if name else someone(rng, kind)
    fields = story_fields(rng, hero)
    plot = PLOTS[favored(rng, sorted(PLOTS), f"plot of {hero.kind.name}")]
    text = tell(rng, fields, OPENINGS, *plot, CLOSINGS)
    if rng.random() < 0.2:
        middle = tell(rng, fields, *plot)
        head = fields.fill(rng.choice(OPENINGS))
        return f"{head}\n\n{middle}"
    return text
