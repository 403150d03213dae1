"""A grammar holds for the text within a JSON string as it does for the text by itself."""

import json

import pytest

from rose.sampling import Grammar
from rose_gateway.tools.text_in_json import NotFollowed, lark_in_json, regex_in_json
from roseinfer.logits_processors.grammars import GrammarCompiler
from tests.roseinfer.models import byte_tokenizer

#: In the manner of patches that agents send, with all that needs care in JSON.
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | update   // one of these
add: "*** Add File: " name LF added+
update: "*** Update File: " name LF context? changed+
name: /(.+)/
?added: "+" /(.*)/ LF -> line
context: ("@@" | "@@ " /(.+)/) LF
changed: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""

TOKENIZER = byte_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, len(TOKENIZER), frozenset({TOKENIZER.eos_token_id}))


def accepts(kind: str, source: str, text: str) -> bool:
    state = COMPILER.compile(Grammar(kind, source))
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    end = TOKENIZER.eos_token_id
    return state.validate_tokens([*ids, end]) == len(ids) + 1


def in_json(kind: str, source: str) -> str:
    if kind == "regex":
        return f'start: "\\"" /{regex_in_json(source)}/ "\\""\n'
    return f'start: "\\"" T_R_START "\\""\n{lark_in_json(source, "t_")}'


@pytest.mark.parametrize(
    ("kind", "source", "texts"),
    [
        (
            "grammar",
            PATCH,
            [
                '*** Begin Patch\n*** Update File: a "b".py\n@@ f():\n-\tx = "\\n"\n*** End Patch',
                "*** Begin Patch\n*** Add File: ä\n+\n+c:\\d\n*** End Patch\n",
                "*** Begin Patch\n*** Add File: a\n*** End Patch\n",
                "*** Begin Patch *** End Patch",
            ],
        ),
        ("regex", r'[^"]+', ['a\n\\b"', "a\n\\b\x01"]),
        ("regex", r"\s+\S", ["\n\t\r x", "x", '\n"', "\n\\"]),
        ("regex", r'"a"|b\\{2}', ['"a"', "b\\\\", "b\\", "a"]),
        ("regex", r".*", ["a\tb\\", "a\nb", "\x1f"]),
        ("regex", r'[\n"\\]+', ['\n"\\', "a"]),
        ("regex", r"[\x00-\x20]{2}\u0041", ["\x00 A", "\x1f\nA", "aaA"]),
        ("regex", r"\d{4}-\d{2}|é+", ["2020-01", "2020-1", "éé"]),
        ("grammar", 'start: "a".."c" WS NUMBER\n%import common (WS, NUMBER)', ["b\n-", "b\n3.5"]),
        ("grammar", "start: S\n%import common.ESCAPED_STRING -> S", ['"a\\"b"', '"a"b"']),
        ("grammar", r'start: "\x41\n" | "b"i', ["A\n", "B", "a\n"]),
    ],
)
def test_the_same_texts_fit(kind: str, source: str, texts: list[str]) -> None:
    outcomes = set()
    for text in texts:
        fits = accepts(kind, source, text)
        outcomes.add(fits)
        assert accepts("grammar", in_json(kind, source), json.dumps(text, ensure_ascii=False)) == (
            fits
        ), text
    assert True in outcomes


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("grammar", 'start: "(" start ")" | "x"'),
        ("grammar", 'start: a\na: b\nb: "[" a "]" | "1"'),
        ("grammar", 'start: "a"\n%ignore " "'),
        ("grammar", 'start: %json {"type": "string"}'),
        ("grammar", "start: X\n%import other.X"),
        ("grammar", "start: X\n%import common.X"),
        ("grammar", r'start: "\n"i'),
        ("grammar", r'start: " ".."~"' + r' | "\n".."a"'),
        ("regex", "(?=a)b"),
        ("regex", "(?P<n>a)"),
        ("regex", r"a\b"),
        ("regex", r"\p{L}"),
        ("regex", "[a[b]]"),
        ("regex", "[a"),
        ("regex", "a\\"),
    ],
)
def test_what_cannot_be_followed_is_said(kind: str, source: str) -> None:
    with pytest.raises(NotFollowed):
        in_json(kind, source)
