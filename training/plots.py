"""The sentences of the stories, as beats: every beat offers wordings that mean the same.

Lower-case fields are filled as they are and a capital letter in a field's name asks for a
capital letter in the text. `{thing}` may be plural, so its verbs are fields as well.
"""

from typing import Final

Beat = tuple[str, ...]

OPENINGS: Final[Beat] = (
    "Once upon a time, there was {a_trait} {kind} named {hero}. {He} lived {home}.",
    "Once upon a time, there was {a_trait} {kind} who lived {home}. {His} name was {hero}.",
    "Once upon a time, {a_trait} {kind} named {hero} lived {home}.",
    "Once upon a time, {in_place}, there lived {a_trait} {kind}. {His} name was {hero}.",
    "Once there was {a_trait} {kind}. {His} name was {hero}, and {he} lived {home}.",
    "There was {a_trait} {kind} named {hero}. {He} liked {food} and lived {home}.",
    "There once was {a_trait} {kind} who lived {home}. Everyone called {him} {hero}.",
    "Long ago, {a_trait} {kind} named {hero} lived {home}. {He} loved to {habit}.",
    "{Hero} was {a_trait} {kind}. {He} lived {home}.",
    "{Hero} the {kind} lived {home}. {He} was {trait} and loved to {habit}.",
    "{A_kind} named {hero} lived {home}. {He} was very {mood}.",
    "{A_trait} {kind} lived {home}. {His} name was {hero}.",
    "{In_place}, there was {a_trait} {kind} named {hero}. {Sky}",
    "{In_place} lived {a_trait} {kind}. {His} name was {hero}, and {he} loved {food}.",
    "One {time}, {a_trait} {kind} named {hero} went for a walk {in_place}.",
    "One {time}, {hero} the {kind} woke up early. {Sky}",
    "{Sky} {Hero} the {kind} was {in_place}.",
    "The {trait} {kind} was called {hero}. {He} lived {home}.",
    "The {kind} was {mood} that day. {His} name was {hero}, and {he} lived {home}.",
    "This is the story of {hero}, {a_trait} {kind}. {Hero} lived {home}.",
    "Far away, {a_trait} {kind} named {hero} lived {home}.",
    "Every morning, {hero} the {kind} went for a walk {in_place}. {He} loved to {habit}.",
    "It was a quiet {time} {in_place}. {A_trait} {kind} named {hero} sat in the sun.",
    "My friend {hero} is {a_trait} {kind}. Let me tell you what happened to {him} one {time}.",
    "When the day began, {hero} the {kind} was still {home}.",
    "Do you know {hero} the {kind}? {He} lives {home}, and this is {his} story.",
)

MEETINGS: Final[Beat] = (
    "Just then, {a_pal} named {pname} came by.",
    "Soon {hero} met {a_pal}. {Phis} name was {pname}.",
    "Then {he} saw {a_pal} named {pname}.",
    "After a while, {a_pal} came along the path. It was {pname}, {his} old friend.",
    "{In_place}, {he} met {a_pal} named {pname}.",
)

SADNESS: Final[Beat] = (
    '"Why are you so sad?" asked {pname}.',
    '"What is wrong?" {pname} asked.',
    '"Hello, {hero}," said {pname}. "Can I help you?"',
    "{Pname} saw that {hero} was sad and asked what had happened.",
    "",
)

THANKS: Final[Beat] = (
    '"Thank you, {pname}!" said {hero}. "You are a good friend."',
    "{Hero} thanked {pname} with a big hug.",
    '"Thank you so much," {hero} said with a smile.',
    "{Hero} was so happy that {he} danced around {pname}.",
    '{Hero} jumped for joy. "I will never forget this, {pname}," {he} said.',
)

ENDINGS: Final[Beat] = (
    "From that day on, {hero} and {pname} were best friends.",
    "That night, {hero} went home and slept well.",
    "Then {hero} and {pname} walked home together.",
    "{Hero} and {pname} shared some {food} and laughed until the sun went down.",
    "After that, {hero} the {kind} was never lonely again.",
    "And so {hero} learned that a good friend is the best help of all.",
    "{Hero} and {pname} sat together and looked at the stars.",
    "From then on, {hero} always helped others too.",
)

CLOSINGS: Final[Beat] = ("The end.", "It was a very good day.", "", "", "", "")

PLOTS: Final[dict[str, tuple[Beat, ...]]] = {
    "wish": (
        (
            "More than anything, {hero} wanted {a_thing}.",
            "{Hero} wished for {a_thing}.",
            "{Hero} had only one wish. {He} wanted {a_thing}.",
            '"I wish I had {a_thing}," {hero} often said.',
            "Every night, {he} dreamed of {a_thing}.",
        ),
        (
            "One {time}, {he} saw {a_thing} {in_place}, but {they} {was} {block}.",
            "One day, {hero} found {a_thing} {in_place}. But {they} {was} {block}.",
            "Then {he} heard that there {was} {a_thing} {in_place}. {He} ran there at once, "
            "but {the_thing} {was} {block}.",
        ),
        (
            "{Hero} tried again and again, but {he} could not get {it}.",
            "{He} could not reach {the_thing}, and {he} began to cry.",
            "{Hero} sat down and did not know what to do.",
            '"Oh no," said {hero}. "I can not get {the_thing}."',
        ),
        MEETINGS,
        SADNESS,
        (
            '"I want {the_thing}, but {theyre} {block}," said {hero}.',
            '"Look, {the_thing} {is} {block}," {hero} said.',
            "{Hero} told {pname} about {the_thing}.",
        ),
        (
            '"I can {skill} very well," said {pname}. "Let me help you."',
            '"Do not cry," said {pname}. "{A_kindpal} can {skill}."',
            '"I can help you," {pname} said, "because I can {skill}."',
        ),
        ("{Pname} {rescue}.", "So the {pal} {rescue}.", "Then {pname} {rescue}."),
        (
            "At last, {hero} had {a_thing}.",
            "Now {the_thing} belonged to {hero}.",
            "{Hero} held {the_thing} in the light and smiled.",
            "",
        ),
        THANKS,
        ENDINGS,
    ),
    "lost": (
        (
            "{Hero} had {a_thing} and took {it} everywhere.",
            "{Hero} loved {his} {thing} very much.",
            "{His} mother had given {him} {a_thing}, and {he} was very proud of {it}.",
            "The best thing that {hero} had {was} {a_thing}.",
        ),
        (
            "One {time}, {the_thing} {was} gone.",
            "But one {time}, {he} lost {his} {thing} {in_place}.",
            "Then, one {time}, {he} could not find {the_thing}.",
        ),
        (
            "{He} looked {spot2}, but {they} {was} not there.",
            "{Hero} looked {spot2} and {spot3}, but {he} found nothing.",
            "First {he} looked {spot2}. Then {he} looked {spot3}. {The_thing} {was} not there.",
            '"Where {is} my {thing}?" {he} cried.',
        ),
        MEETINGS,
        SADNESS,
        (
            '"I lost my {thing}," said {hero}.',
            '"Have you seen my {thing}?" asked {hero}.',
            "{Hero} told {pname} about {the_thing}.",
        ),
        (
            '"I saw {a_thing} {spot}," said {pname}.',
            '"Let us look {spot}," said {pname}.',
            '"I think {theyre} {spot}," {pname} answered.',
        ),
        (
            "They went there together, and {the_thing} {was} {spot}.",
            "They ran as fast as they could. There {was} {the_thing}, {spot}.",
            "So they looked {spot}, and there {they} {was}!",
        ),
        THANKS,
        ENDINGS,
    ),
    "noise": (
        (
            "One night, {hero} heard a strange noise {spot}.",
            "One {time}, {he} heard a sound {spot}.",
            "On the way home, {hero} heard somebody cry {spot}.",
        ),
        ("{He} was afraid, but {he} wanted to know what it was.", "{Hero} stood very still.", ""),
        ('"Who is there?" asked {hero}.', '"Hello?" said {hero}. "Is somebody there?"'),
        (
            '"It is only me," said a soft voice. "I am {pname} the {pal}."',
            '"Please help me," said a small voice. It was {a_pal} named {pname}.',
        ),
        (
            "{Pname} had lost the way and could not find {phis} home.",
            "{Pname} was cold and hungry.",
            "{Pname} was stuck and could not get out.",
            "The {pal} had hurt {phis} foot and could not walk.",
        ),
        (
            '"Do not worry," said {hero}. "I will help you."',
            "{Hero} was not afraid any more.",
            "{Hero} felt sorry for the {pal}.",
        ),
        (
            "{He} took {pname} home and gave {phim} some {food}.",
            "{He} helped {pname} and brought {phim} to a warm place.",
            "{He} gave {pname} a blanket and some {food}.",
        ),
        (
            "{Pname} was very thankful and gave {hero} {a_thing}.",
            '"You are so kind," said {pname}. "Please take my {thing}."',
            '"Thank you, {hero}," said {pname}. "You are very brave."',
        ),
        ENDINGS,
    ),
    "cooking": (
        (
            "{Hero} wanted to make {a_dish} for {his} friends.",
            "It was {his} birthday, and {he} wanted to bake something. {He} chose {a_dish}.",
            "One {time}, {hero} was hungry. {He} wanted to make {a_dish}.",
        ),
        (
            "But there were no {ingredient} in the kitchen.",
            "{He} looked in the kitchen, but {he} had no {ingredient}.",
            "But for {a_dish}, {he} needed {ingredient}, and {he} had none.",
        ),
        ("So {he} went to look for {ingredient} {in_place}.", "So {he} took a basket and left."),
        MEETINGS,
        (
            '"Do you have any {ingredient}?" asked {hero}.',
            '"I need {ingredient} for my {dish}," {hero} said.',
        ),
        (
            '"Yes, I have a lot of {ingredient}," said {pname}. "You can have some."',
            '"I know where to find {ingredient}," said {pname}. They filled the basket.',
            "{Pname} gave {him} a big bag of {ingredient}.",
        ),
        (
            "Together they made the {dish}.",
            "{Hero} went home and made the {dish}, and it smelled very good.",
            "Back home, {hero} put the {ingredient} into a big pot and stirred.",
        ),
        (
            '"This is the best {dish} in the world," said {pname}.',
            "{Hero} gave {pname} the first piece.",
            "They ate the {dish} until nothing was left.",
        ),
        ENDINGS,
    ),
    "gift": (
        (
            "{Hero} had a good friend named {pname}, who was {a_pal}.",
            "{His} best friend was {a_pal} named {pname}.",
        ),
        (
            "One day, {pname} was ill and had to stay in bed.",
            "It was the birthday of {pname}, and {hero} had no gift.",
            "One {time}, {pname} was very sad.",
        ),
        (
            '"What can I give {phim}?" {hero} thought.',
            '"I must make {phim} happy," {hero} said.',
            "{Hero} thought about it for a long time.",
        ),
        (
            "Then {he} saw {a_thing} {spot}.",
            "{He} walked through the rain, and {he} found {a_thing} {spot}.",
            "{In_place}, {he} found {a_thing}.",
        ),
        (
            "{He} cleaned {the_thing} and took {it} to {pname}.",
            "{He} put {the_thing} in a box and carried {it} to {pname}.",
            '"This will be perfect," {he} said, and {he} took {it} to {pname}.',
        ),
        (
            '"{A_thing}!" cried {pname}. "That is just what I wanted."',
            '"Is this for me?" asked {pname}. "I love {it}."',
            "When {pname} saw {the_thing}, {phe} smiled and felt much better.",
        ),
        (
            '"You are the best friend in the world," said {pname}.',
            "{Pname} put {the_thing} next to the window.",
            "",
        ),
        ENDINGS,
    ),
    "race": (
        (
            "One {time}, {he} met {a_pal} named {pname}.",
            "{A_pal} named {pname} lived not far away.",
        ),
        (
            '"I am the fastest of all," said {pname}. "Do you want to race?"',
            '"Let us run to the {goal}," said {pname}. "I will win."',
        ),
        (
            '"Yes," said {hero}. "Let us run to the {goal}."',
            "{Hero} was not sure, but {he} said yes. They ran to the {goal}.",
        ),
        (
            "{Pname} ran very fast, but then {phe} stopped to eat some {pfood}.",
            "{Pname} was so sure of {phim}self that {phe} took a rest under a tree.",
        ),
        (
            "{Hero} did not stop. {He} went on, step by step.",
            "{Hero} was slow, but {he} never stopped.",
        ),
        (
            "At last, {hero} reached the {goal} first.",
            "{Hero} came to the {goal} and won the race.",
        ),
        (
            '"You won," said {pname}. "I should not have stopped."',
            '"Well done, {hero}," said {pname}. "Next time I will not rest."',
        ),
        (
            "{Hero} gave {pname} {a_thing} so that {phe} would not be sad.",
            "They laughed and ate some {food} together.",
            "",
        ),
        ENDINGS,
    ),
    "rain": (
        (
            "One {time}, {hero} wanted to visit {his} friend {pname}.",
            "{Hero} was on the way to {pname}, who was {a_pal}.",
        ),
        (
            "Suddenly, it began to rain.",
            "Then dark clouds came, and it rained hard.",
            "But a big storm came, and the wind was loud.",
        ),
        (
            "{Hero} hid {spot} and waited.",
            "{He} was wet and cold, so {he} sat down {spot}.",
        ),
        (
            "There {he} found {a_thing}.",
            "To {his} surprise, {he} saw {a_thing} there.",
        ),
        (
            '"I will bring {it} to {pname}," {he} thought.',
            "{He} picked {it} up and waited for the sun.",
        ),
        (
            "When the rain was over, {hero} walked on.",
            "Soon the sun came out, and there was a rainbow over the {goal}.",
        ),
        (
            '"Look what I found," {hero} said to {pname}.',
            "At last, {he} came to {pname} and gave {phim} {the_thing}.",
        ),
        (
            '"You found my {thing}!" said {pname}. "I lost {it} last week."',
            '"How nice," said {pname}. "Come in and have some {pfood}."',
        ),
        ENDINGS,
    ),
}
