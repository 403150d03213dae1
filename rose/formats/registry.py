"""The formats by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rose.formats.argument_types import Types
from rose.formats.call_grammar import CallGrammar
from rose.formats.call_parser import CallFormat, CallsParser
from rose.formats.call_reading import CallReader
from rose.formats.families import (
    deepseek,
    function_gemma,
    harmony,
    kimi,
    lists,
    mistral,
    objects,
    pythonic,
    xml,
)
from rose.formats.parts import Parser, TextParser
from rose.formats.thoughts import ThoughtFormat, ThoughtParser

#: Adds the rule `start` of its calls and returns their triggers, as `SamplingParams` has them.
Grammar = Callable[[CallGrammar], tuple[str, ...]]


class ToolFormat(NamedTuple):
    """How a family writes calls."""

    parser: Callable[[frozenset[str], Types], Parser]
    grammar: Grammar
    tags: tuple[str, ...] = ()
    """what the parser must see, special token or not"""
    end: str = ""
    """a text that ends each call and stands nowhere else; "" if there is none"""
    is_typed: bool = False
    """arguments are text, whose types only the schema says"""
    ends: tuple[str, ...] = ()
    """texts that end an answer"""


def _objects(form: CallFormat, grammar: Grammar) -> ToolFormat:
    return ToolFormat(
        lambda names, _: CallsParser(names, form), grammar, form.tags or (), form.close
    )


def _read_by(
    reader: type[CallReader], grammar: Grammar, *more: str, **fields: object
) -> ToolFormat:
    tags = (*reader.openings, *reader.dropped, *more)
    return ToolFormat(reader, grammar, tags, **fields)  # type: ignore[arg-type]


_HERMES = _objects(CallFormat("arguments", ("<tool_call>", "</tool_call>")), objects.hermes_grammar)

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": _HERMES,
        "llama3_json": _objects(CallFormat("parameters", separator=";"), objects.llama3_grammar),
        "pythonic": _read_by(pythonic.PythonicReader, pythonic.grammar),
        "qwen3_xml": _read_by(
            xml.QwenXmlReader, xml.qwen_grammar, "</tool_call>", end="</tool_call>", is_typed=True
        ),
        "glm45": _read_by(
            xml.GlmReader, xml.glm_grammar, "</tool_call>", end="</tool_call>", is_typed=True
        ),
        "minimax_m2": _read_by(
            xml.MiniMaxReader, xml.minimax_grammar, end="</invoke>", is_typed=True
        ),
        "mistral": _read_by(mistral.MistralReader, mistral.grammar, "[ARGS]", "[CALL_ID]"),
        "deepseek": _read_by(
            deepseek.DeepSeekReader, deepseek.grammar, deepseek.SEPARATOR, end="<｜tool▁call▁end｜>"
        ),
        "kimi_k2": _read_by(
            kimi.KimiReader, kimi.grammar, "<|tool_call_argument_begin|>", end="<|tool_call_end|>"
        ),
        "granite": _read_by(lists.GraniteReader, lists.granite_grammar),
        "phi4": _read_by(lists.Phi4Reader, lists.phi4_grammar),
        "command_r": _read_by(lists.CommandReader, lists.command_grammar),
        "function_gemma": _read_by(
            function_gemma.FunctionGemmaReader,
            function_gemma.grammar,
            "<escape>",
            end="<end_function_call>",
        ),
        "harmony": _read_by(harmony.HarmonyReader, harmony.grammar, ends=("<|call|>",)),
        "generic": _HERMES,
    }
)

REASONING_FORMATS: Mapping[str, ThoughtFormat] = MappingProxyType(
    {
        "think": ThoughtFormat("<think>", "</think>", margins=("\n", "\n\n")),
        "seed": ThoughtFormat("<seed:think>", "</seed:think>", margins=("\n", "\n")),
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
#: Its chat templates show the ids of calls.
KIMI = "kimi_k2"
#: It writes thoughts as it writes all else: in channels.
HARMONY = "harmony"


def parser_of(rest: Parser | None, reasoning_format: str, tool_format: str = "") -> Parser:
    """`rest`: reads what are no thoughts, calls of `tool_format` perhaps. A format that is not
    known has none."""
    if reasoning_format == HARMONY:
        if rest is None:
            return harmony.HarmonyReader(frozenset())
        return rest if tool_format == HARMONY else harmony.ChannelParser(rest)
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


def thought_tags(reasoning_format: str, tool_format: str) -> tuple[str, ...]:
    """As `SamplingParams` has them: the tags of a thought before what a grammar is about."""
    if reasoning_format == HARMONY:  # whose own calls have a channel, as its thoughts have
        return () if tool_format == HARMONY else harmony.THOUGHT_TAGS
    form = REASONING_FORMATS.get(reasoning_format)
    return () if form is None else (form.open, form.close, *form.before)


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
