"""The word lists of the story grammar: who, where and what a story may be about."""

from dataclasses import dataclass
from typing import Final, Literal

Skill = Literal["fly", "swim", "climb", "dig", "push"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of character; what is fixed here is what a question can ask about."""

    name: str
    home: str
    food: str
    habit: str
    skill: Skill | None = None
    gender: Literal["f", "m"] | None = None


@dataclass(frozen=True, slots=True)
class Thing:
    """Something to want, lose or find; the number decides every verb and pronoun."""

    noun: str
    plural: bool = False


def listed(line: str) -> tuple[str, ...]:
    """Words written in one line, where a literal would need a line for each."""
    return tuple(line.split())


ANIMALS: Final = (
    Kind("fox", "in a den under the hill", "berries", "run through the snow", "dig"),
    Kind("bear", "in a cave in the forest", "honey", "sleep all winter", "push"),
    Kind("rabbit", "in a burrow under the field", "carrots", "hop in the grass", "dig"),
    Kind("mouse", "in a hole behind the barn", "cheese", "hide in small places"),
    Kind("owl", "in a hollow tree in the woods", "moths", "fly at night", "fly"),
    Kind("cat", "in a warm house by the road", "fish", "sleep in the sun", "climb"),
    Kind("dog", "in a red house near the farm", "bones", "run after sticks", "dig"),
    Kind("duck", "by the green pond", "bread", "swim in the rain", "swim"),
    Kind("frog", "under the bridge", "flies", "jump into the water", "swim"),
    Kind("squirrel", "in the old oak tree", "nuts", "jump from tree to tree", "climb"),
    Kind("hedgehog", "under the garden hedge", "apples", "roll up into a ball"),
    Kind("goat", "on the high mountain", "grass", "jump over rocks", "climb"),
    Kind("horse", "in a big stable", "hay", "run in the wind", "push"),
    Kind("sheep", "in the green meadow", "clover", "stand close to {his} friends"),
    Kind("pig", "behind the farm house", "corn", "roll in the mud", "dig"),
    Kind("hen", "in the hen house", "seeds", "sit on {his} warm eggs", None, "f"),
    Kind("turtle", "near the slow river", "leaves", "walk very slowly", "swim"),
    Kind("bird", "in a nest in the apple tree", "worms", "sing in the morning", "fly"),
    Kind("bee", "in a yellow hive", "honey", "fly from flower to flower"),
    Kind("lion", "on the wide plain", "meat", "rest in the shade", "push"),
    Kind("elephant", "in the green jungle", "fruit", "play with water", "push"),
    Kind("monkey", "in the tall palm trees", "bananas", "swing from tree to tree", "climb"),
    Kind("penguin", "on the cold ice", "fish", "slide on the snow", "swim"),
    Kind("whale", "in the deep sea", "small fish", "sing under the water", "swim"),
    Kind("crab", "under a rock on the beach", "seaweed", "walk to the side", "dig"),
    Kind("deer", "in the quiet woods", "bark", "run on long legs"),
    Kind("wolf", "in the dark forest", "meat", "sing to the moon", "dig"),
    Kind("beaver", "in a house of sticks on the river", "bark", "build with wood", "swim"),
    Kind("donkey", "in the old barn", "straw", "carry heavy bags", "push"),
    Kind("cow", "on the farm", "grass", "give fresh milk", "push", "f"),
    Kind("swan", "on the blue lake", "water plants", "swim in the moonlight", "fly"),
    Kind("mole", "in a tunnel under the garden", "worms", "dig in the dark", "dig"),
    Kind("snail", "under a wet stone", "leaves", "carry {his} house on {his} back"),
    Kind("ant", "in a hill of sand", "crumbs", "work all day"),
    Kind("dragon", "in a cave on the mountain", "hot soup", "fly over the clouds", "fly"),
    Kind("parrot", "in the warm jungle", "seeds", "say funny words", "fly"),
    Kind("otter", "by the cold stream", "fish", "float on {his} back", "swim"),
    Kind("robot", "in a little workshop", "oil", "fix old clocks", "push"),
    Kind("fish", "in the clear lake", "water plants", "swim in circles", "swim"),
    Kind("giraffe", "on the warm plain", "leaves", "look over the trees", "push"),
    Kind("zebra", "on the dry plain", "grass", "run with {his} family"),
    Kind("camel", "in the hot desert", "dry grass", "walk over the sand", "push"),
    Kind("kangaroo", "in the wide bush", "grass", "jump very far"),
    Kind("goose", "by the village pond", "corn", "walk in a line", "fly"),
    Kind("badger", "under the roots of a tree", "roots", "clean {his} home", "dig"),
    Kind("butterfly", "in the flower garden", "sweet juice", "dance in the air"),
    Kind("spider", "in the corner of the attic", "flies", "make beautiful nets", "climb"),
    Kind("kitten", "in a basket in the kitchen", "warm milk", "play with wool", "climb"),
    Kind("puppy", "in a little dog house", "bones", "run after balls", "dig"),
    Kind("dinosaur", "in a green valley", "leaves", "walk through the swamp", "push"),
    Kind("seal", "on a rock in the sea", "fish", "lie in the sun", "swim"),
    Kind("tiger", "in the tall grass", "meat", "walk without a sound", "climb"),
)

PEOPLE: Final = (
    Kind("girl", "in a small house near the river", "pancakes", "ask many questions", None, "f"),
    Kind("boy", "in a white house on the hill", "apple pie", "climb trees", "climb", "m"),
    Kind("king", "in a castle on the hill", "roast potatoes", "walk in {his} garden", None, "m"),
    Kind("queen", "in a palace by the lake", "sweet cakes", "read old books", None, "f"),
    Kind("farmer", "on a farm in the valley", "bread and butter", "get up early", "push"),
    Kind("baker", "above the bakery in the village", "warm bread", "sing in the kitchen"),
    Kind("sailor", "in a little boat in the harbor", "fish soup", "look at the stars", "swim"),
    Kind("princess", "in a high tower", "cherry cake", "ride a white horse", "climb", "f"),
    Kind("prince", "in a palace in the city", "plum cake", "play the drum", "climb", "m"),
    Kind("grandmother", "in a cottage in the woods", "pea soup", "tell old stories", None, "f"),
    Kind("grandfather", "in a house near the mill", "onion soup", "make wooden toys", None, "m"),
    Kind("teacher", "next to the school", "oranges", "read to the children"),
    Kind("painter", "in a room under the roof", "toast", "paint the sky"),
)

GIRL_NAMES: Final = listed(
    "Lily Mia Anna Rosa Ella Nora Ruby Daisy Clara Ivy Luna Molly Poppy Hazel Emma Alice Sara "
    "Lucy Grace Maya Rose Julia Olive Amy Eva Betty Kate Mary Jane Zoe"
)
BOY_NAMES: Final = listed(
    "Tom Ben Max Leo Sam Finn Oscar Jack Felix Hugo Theo Otto Charlie Henry Noah Toby Adam "
    "Peter David Bruno Paul Simon Victor Ned Milo Arthur Eric John Ravi Omar"
)
NAMES: Final = GIRL_NAMES + BOY_NAMES

COLORS: Final = listed("red blue green yellow orange white purple golden silver brown")
LOOKS: Final = ("old", "little", "round", "shiny", "pretty", "tiny", "new")

SINGLE: Final = listed(
    "ball kite hat key bell drum lantern book boat umbrella scarf ring map flute feather "
    "button shell apple egg coin mirror basket blanket balloon star clock cup box flower "
    "ribbon spoon bag pencil whistle"
)
COMMON: Final = (*NAMES, *(kind.name for kind in ANIMALS), *COLORS, *SINGLE)
SEVERAL: Final = listed("boots mittens beads marbles gloves shoes keys")
THINGS: Final = (
    *(Thing(noun) for noun in SINGLE),
    *(Thing(noun, plural=True) for noun in SEVERAL),
)

TRAITS: Final = listed(
    "little small young kind brave clever shy cheerful curious gentle quiet friendly happy old "
    "lazy playful eager"
)

PLACES: Final = (
    "in the forest",
    "in the garden",
    "by the river",
    "on the beach",
    "at the market",
    "in the village",
    "on the farm",
    "near the lake",
    "in the meadow",
    "on the hill",
    "in the park",
    "at the harbor",
    "near the old mill",
    "in the valley",
    "by the sea",
    "in the woods",
)

SPOTS: Final = (
    "under a big leaf",
    "behind a gray rock",
    "inside a hollow log",
    "under the wooden bridge",
    "next to the old well",
    "in the tall grass",
    "behind the garden gate",
    "beside the road",
    "between two stones",
    "near the apple tree",
    "under a pile of leaves",
    "on the stone wall",
    "at the edge of the pond",
    "behind the barn",
    "under the kitchen table",
)

SKIES: Final = (
    "The sun was warm and the sky was blue.",
    "It was a sunny day.",
    "A soft wind was blowing.",
    "The birds were singing in the trees.",
    "It was a cold and windy day.",
    "The air was fresh and clean.",
    "White clouds moved slowly across the sky.",
    "There was snow on the ground.",
    "The grass was wet after the rain.",
    "It was the first day of spring.",
)

DISHES: Final = (
    ("apple cake", "apples"),
    ("berry pie", "berries"),
    ("carrot soup", "carrots"),
    ("pear cake", "pears"),
    ("nut bread", "nuts"),
    ("peach pie", "peaches"),
    ("mushroom soup", "mushrooms"),
    ("plum cake", "plums"),
    ("onion soup", "onions"),
    ("cherry pie", "cherries"),
    ("pumpkin soup", "pumpkins"),
)

TIMES: Final = ("morning", "afternoon", "evening", "day", "summer day", "winter morning")
NUMBERS: Final = listed("zero one two three four five six seven eight nine ten")

HINDRANCE: Final[dict[Skill, tuple[str, str, str]]] = {
    "fly": (
        "at the top of a tall tree",
        "fly",
        "flew up to the top of the tall tree and brought {it} down",
    ),
    "swim": (
        "in the middle of the water",
        "swim",
        "swam to the middle of the water and brought {it} back",
    ),
    "climb": ("on a very high wall", "climb", "climbed up the high wall and took {it} down"),
    "dig": ("deep under the ground", "dig", "dug a deep hole and pulled {it} out"),
    "push": (
        "under a heavy stone",
        "move heavy stones",
        "pushed the heavy stone away and picked {it} up",
    ),
}
"""What is in the way, keyed by the skill that removes it: the helper must have that skill."""

TOPICS: Final = listed(
    "capital France computer code Python list function sort GPU history president water boil moon "
    "science music number world planet language English German train car city country language "
    "machine learning model network data program file server memory energy light sun gravity "
    "money market law book movie game sport football team school student university physics math "
    "equation integer string error test email summary paragraph essay poem haiku joke recipe week "
    "the of in a and to for with is are between does work how why what that from about it best"
)
"""Words of questions from outside the stories; the model reads them and never writes them."""
