"""Builds one story: who is in it is drawn once, so that the end agrees with the beginning."""

import random
from dataclasses import dataclass

from roseinfer.demo_model.plots import CLOSINGS, OPENINGS, PLOTS, Beat
from roseinfer.demo_model.words import (
    ANIMALS,
    BOY_NAMES,
    COLORS,
    DISHES,
    GIRL_NAMES,
    HINDRANCE,
    LOOKS,
    PEOPLE,
    PLACES,
    SKIES,
    SPOTS,
    THINGS,
    TIMES,
    TRAITS,
    Kind,
    Thing,
)

GOALS = ("river", "old mill", "big tree", "hill", "bridge", "lake", "village", "stone wall")
MOODS = ("happy", "hungry", "tired", "cheerful", "busy", "sleepy", "proud")
SOUNDS_LIKE_A_VOWEL = tuple("aeiou")


def with_article(noun: str) -> str:
    """The lists hold no word like "hour" or "unicorn", so the first letter decides."""
    return f"an {noun}" if noun.lower().startswith(SOUNDS_LIKE_A_VOWEL) else f"a {noun}"


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
    """Draw a character whose name differs from the one already in the text."""
    kind = kind or rng.choice(ANIMALS if rng.random() < 0.75 else PEOPLE)
    female = kind.gender == "f" if kind.gender else rng.random() < 0.5
    names = [name for name in (GIRL_NAMES if female else BOY_NAMES) if name != besides]
    return Someone(kind, rng.choice(names), female)


def looked_at(rng: random.Random, thing: Thing) -> str:
    """A noun with at most two adjectives, in the order in which English puts them."""
    color, look = rng.choice(COLORS), rng.choice(LOOKS)
    return rng.choice(
        (f"{color} {thing.noun}", f"{look} {thing.noun}", f"{look} {color} {thing.noun}")
    )


def thing_fields(rng: random.Random) -> dict[str, str]:
    """Everything that has to agree with the number of the thing."""
    thing = rng.choice(THINGS)
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


def scene_fields(rng: random.Random) -> dict[str, str]:
    """Where and when it happens, and what is cooked there."""
    spot, spot2, spot3 = rng.sample(SPOTS, 3)
    dish, ingredient = rng.choice(DISHES)
    return {
        "in_place": rng.choice(PLACES),
        "sky": rng.choice(SKIES),
        "time": rng.choice(TIMES),
        "mood": rng.choice(MOODS),
        "goal": rng.choice(GOALS),
        "spot": spot,
        "spot2": spot2,
        "spot3": spot3,
        "dish": dish,
        "a_dish": with_article(dish),
        "ingredient": ingredient,
    }


def story_fields(rng: random.Random, hero: Someone) -> Fields:
    """Draw everything a story needs; a helper is drawn from those who can help."""
    skill = rng.choice(sorted(HINDRANCE))
    helpers = [k for k in ANIMALS if k.skill == skill and k is not hero.kind]
    pal = someone(rng, rng.choice(helpers), besides=hero.name)
    trait = rng.choice(TRAITS)
    pal_trait = rng.choice(["", *TRAITS])
    where, verb, rescue = HINDRANCE[skill]
    fields = Fields(person_fields(hero, pal, trait, pal_trait))
    fields.update(thing_fields(rng) | scene_fields(rng))
    fields.update({"block": where, "skill": verb, "rescue": rescue})
    return fields


def tell(rng: random.Random, fields: Fields, beats: tuple[Beat, ...]) -> str:
    """Draw one wording of every beat and join what is not empty."""
    wordings = (rng.choice(beat) for beat in beats)
    return " ".join(fields.fill(wording) for wording in wordings if wording)


def story(rng: random.Random, kind: Kind | None = None, name: str = "") -> str:
    """A whole story, about a given kind of character or a given name where one is asked for."""
    hero = someone(rng, kind)
    if name:
        female = name in GIRL_NAMES
        hero = Someone(hero.kind, name, female)
    fields = story_fields(rng, hero)
    plot = PLOTS[rng.choice(sorted(PLOTS))]
    beats = (OPENINGS, *plot, CLOSINGS)
    text = tell(rng, fields, beats)
    if rng.random() < 0.2:
        middle = tell(rng, fields, plot)
        head = fields.fill(rng.choice(OPENINGS))
        return f"{head}\n\n{middle}"
    return text
