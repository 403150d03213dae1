"""How families of models write calls of functions and thoughts, and how both are read.

The gateway reads answers with it, and the worker recognises the formats of its model. So it needs
neither torch nor a tokenizer.

    parts        what an answer consists of
    reading      what parsers have in common
    registry     the formats by name
"""
