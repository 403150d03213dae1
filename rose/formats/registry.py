"""The formats by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rose.formats.argument_types import Types
from rose.formats.call_parser import CallFormat, CallsParser
from rose.formats.call_reading import CallReader
from rose.formats.families.deepseek import SEPARATOR, DeepSeekReader
from rose.formats.families.function_gemma import FunctionGemmaReader
from rose.formats.families.harmony import HarmonyReader
from rose.formats.families.kimi import KimiReader
from rose.formats.families.lists import CommandReader, GraniteReader, Phi4Reader
from rose.formats.families.mistral import MistralReader
from rose.formats.families.pythonic import PythonicReader
from rose.formats.families.xml import GlmReader, MiniMaxReader, QwenXmlReader
from rose.formats.parts import Parser, TextParser
from rose.formats.thoughts import ThoughtFormat, ThoughtParser


class ToolFormat(NamedTuple):
    """How a family writes calls."""

    parser: Callable[[frozenset[str], Types], Parser]
    tags: tuple[str, ...] = ()
    """what the parser must see, special token or not"""
    end: str = ""
    """a text that ends each call and stands nowhere else; "" if there is none"""
    is_typed: bool = False
    """arguments are text, whose types only the schema says"""
    ends: tuple[str, ...] = ()
    """texts that end an answer"""
    triggers: tuple[str, ...] = ()
    """what opens a call that a grammar can follow"""


def _objects(form: CallFormat) -> ToolFormat:
    return ToolFormat(lambda names, _: CallsParser(names, form), form.tags or (), form.close)


def _read_by(reader: type[CallReader], *more: str, **fields: object) -> ToolFormat:
    tags = (*reader.openings, *reader.dropped, *more)
    return ToolFormat(reader, tags, **fields)  # type: ignore[arg-type]


_HERMES = _objects(CallFormat("arguments", ("<tool_call>", "</tool_call>")))._replace(
    triggers=("<tool_call>",)
)

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": _HERMES,
        "llama3_json": _objects(CallFormat("parameters", separator=";")),
        "pythonic": _read_by(PythonicReader),
        "qwen3_xml": _read_by(QwenXmlReader, "</tool_call>", end="</tool_call>", is_typed=True),
        "glm45": _read_by(GlmReader, "</tool_call>", end="</tool_call>", is_typed=True),
        "minimax_m2": _read_by(MiniMaxReader, end="</invoke>", is_typed=True),
        "mistral": _read_by(MistralReader, "[ARGS]", "[CALL_ID]"),
        "deepseek": _read_by(DeepSeekReader, SEPARATOR, end="<｜tool▁call▁end｜>"),
        "kimi_k2": _read_by(KimiReader, "<|tool_call_argument_begin|>", end="<|tool_call_end|>"),
        "granite": _read_by(GraniteReader),
        "phi4": _read_by(Phi4Reader),
        "command_r": _read_by(CommandReader),
        "function_gemma": _read_by(FunctionGemmaReader, "<escape>", end="<end_function_call>"),
        "harmony": _read_by(HarmonyReader, ends=("<|call|>",)),
        "generic": _HERMES,
    }
)

REASONING_FORMATS: Mapping[str, ThoughtFormat] = MappingProxyType(
    {
        "think": ThoughtFormat("<think>", "</think>", margins=("\n", "\n\n")),
        "mistral": ThoughtFormat("[THINK]", "[/THINK]", anywhere=True, before=("[TOOL_CALLS]",)),
        "command_r": ThoughtFormat(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            anywhere=True,
            before=("<|START_ACTION|>", "<|START_RESPONSE|>"),
        ),
        "kimi_k2": ThoughtFormat("<think>", "</think>", before=("<|tool_calls_section_begin|>",)),
        "granite": ThoughtFormat(
            "Here is my thought process:", "Here is my response:", margins=("\n\n", "\n")
        ),
    }
)

#: Of models whose template knows no tools.
GENERIC = "generic"
#: It writes thoughts as it writes all else: in channels.
HARMONY = "harmony"


def parser_of(rest: Parser | None, reasoning_format: str) -> Parser:
    """`rest`: reads what are no thoughts. A format that is not known has none."""
    if reasoning_format == HARMONY:
        return rest or HarmonyReader(frozenset())
    rest = rest or TextParser()
    form = REASONING_FORMATS.get(reasoning_format)
    return rest if form is None else ThoughtParser(form, rest)


def shown_special(tool_format: str, reasoning_format: str) -> tuple[str, ...]:
    """The tags that the parsers of an answer must see, where they are special tokens."""
    tags: list[str] = []
    for name in (tool_format, HARMONY if reasoning_format == HARMONY else ""):
        if form := TOOL_FORMATS.get(name):
            tags += form.tags
    if thoughts := REASONING_FORMATS.get(reasoning_format):
        tags += (thoughts.open, thoughts.close)
    return tuple(dict.fromkeys(tags))


def shown_prompt_end(reasoning_format: str) -> tuple[str, ...]:
    """Ends of a prompt that belong to the answer: the opening of a thought."""
    form = REASONING_FORMATS.get(reasoning_format)
    return () if form is None else (form.open,)


#: What ends a thought in harmony: the model chooses the channel of what follows, and where it goes
#: on thinking has no choice.
_HARMONY_ENDS = (
    "<|end|><|start|>assistant",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)


def thought_ends(reasoning_format: str) -> tuple[str, ...]:
    """What is written to end the first thought that takes too long, the second one and so on, the
    last of them for all others; () of a format that is not known."""
    if reasoning_format == HARMONY:
        return _HARMONY_ENDS
    form = REASONING_FORMATS.get(reasoning_format)
    return () if form is None else (form.close.join(form.margins),)
