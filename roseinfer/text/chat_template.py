"""Conversations, as the chat template of a model writes them, to token ids."""

import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jinja2
import jinja2.meta

from rose.errors import InvalidParameter
from roseinfer.text.special_text import cut_special, encode_cut
from roseinfer.text.tokenization import require_tokenizer

#: Fields of a message from which templates read the thoughts of earlier answers.
_THOUGHTS = ("reasoning_content", "thinking")
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


def encode_chat(
    tokenizer: Any | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    template_kwargs: Mapping[str, Any] = NO_VARIABLES,
    *,
    continue_final: bool = False,
) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins. With `continue_final`
    the last message is the assistant's, and the answer goes on where its content ends.

    `messages` and `tools` are as in OpenAI's API for chats. A template that mentions no tools
    leaves them out. `template_kwargs` are variables of the template beside them, such as
    `enable_thinking`. Names of special tokens in any of them stay text: see special_text.

    Raises InvalidParameter if the model has no chat template or its template refuses `messages`.
    """
    tokenizer = require_tokenizer(tokenizer)
    template = template_of(tokenizer, tools)
    if not template:
        raise InvalidParameter(
            "this model has no chat template: send a plain prompt instead", param="prompt"
        )
    if not messages:
        raise InvalidParameter(
            "messages is empty: a chat needs at least one message", param="prompt"
        )
    _check_variables(tokenizer, template_kwargs)
    conversation = [_for_template(message, template) for message in messages]
    try:
        return _render(tokenizer, conversation, tools, template_kwargs, continue_final)
    except InvalidParameter as refusal:
        if not isinstance(refusal.__cause__, TypeError):
            raise
        # Some templates join the arguments of a call to other texts.
        as_text = [_for_template(message, template, parse=False) for message in messages]
        return _render(tokenizer, as_text, tools, template_kwargs, continue_final)


def _render(
    tokenizer: Any,
    conversation: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any],
    continue_final: bool,
) -> list[int]:
    """Raises InvalidParameter for what the template refuses."""
    try:
        text = tokenizer.apply_chat_template(
            cut_special(tokenizer, conversation),
            tools=cut_special(tokenizer, [dict(tool) for tool in tools]) or None,
            add_generation_prompt=not continue_final,
            continue_final_message=continue_final,
            tokenize=False,
            **cut_special(tokenizer, dict(template_kwargs)),
        )
        return encode_cut(tokenizer, text)
    except Exception as error:
        # Templates are programs of the model's authors: whatever they raise is about the messages.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidParameter(
            f"the chat template refused the messages: {reason}", param="prompt"
        ) from error


def _check_variables(tokenizer: Any, template_kwargs: Mapping[str, Any]) -> None:
    """Raises InvalidParameter for a name that is an argument of transformers' own."""
    if not template_kwargs:
        return
    own = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in own.keys() & template_kwargs.keys():
        raise InvalidParameter(
            f"{name!r} is no variable that a chat template may be given",
            param="chat_template_kwargs",
        )


def template_of(tokenizer: Any | None, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of the model's chat template, "" if it has none. Some models have one of their own
    for tools, and some only templates for other purposes."""
    templates = getattr(tokenizer, "chat_template", None)
    purposes = {"default", "tool_use"} if tools else {"default"}
    if not templates or (isinstance(templates, dict) and not purposes & templates.keys()):
        return ""
    tokenizer = require_tokenizer(tokenizer)
    text: str = tokenizer.get_chat_template(tools=list(tools) or None)
    return text


#: What transformers gives to every template.
_GIVEN = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("raise_exception", "strftime_now", "tojson"),
    )
)
#: transformers' own statement, which marks what an assistant says and changes no variable.
_GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_MAX_VARIABLES = 32


def variables_of(tokenizer: Any | None) -> tuple[str, ...]:
    """The names that the model's chat templates read beside the conversation, such as
    `enable_thinking`, in alphabetical order; () where a template cannot be read."""
    environment = jinja2.Environment(autoescape=False, extensions=["jinja2.ext.loopcontrols"])  # noqa: S701 - nothing is rendered
    names: set[str] = set()
    for template in (template_of(tokenizer), template_of(tokenizer, [{}])):
        try:
            tree = environment.parse(_GENERATION.sub("", template))
            names |= jinja2.meta.find_undeclared_variables(tree)
        except (jinja2.TemplateError, RecursionError):
            return ()
    special = getattr(tokenizer, "special_tokens_map", {})
    own = sorted(name for name in names - _GIVEN - special.keys() if not name.endswith("_token"))
    return tuple(name for name in own if _VARIABLE.fullmatch(name))[:_MAX_VARIABLES]


def _for_template(
    message: Mapping[str, Any], template: str, *, parse: bool = True
) -> dict[str, Any]:
    """A message as templates expect it: arguments of calls as objects, thoughts by the name that
    the template reads, and `developer`, which is a newer name of `system`, only where it knows it.
    """
    fields = dict(message)
    if (thought := fields.pop("reasoning_content", None)) is not None:
        fields |= {name: thought for name in _THOUGHTS if name in template}
    if fields["role"] == "developer" and "developer" not in template:
        fields["role"] = "system"
    if parse and (calls := fields.get("tool_calls")):
        fields["tool_calls"] = [_parsed(call) for call in calls]
    return fields


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = json.loads(function["arguments"], parse_float=_number)
    return {**call, "function": function}


def _number(text: str) -> float | str:
    """Templates write JSON again, which has no infinity: a number beyond floats stays text."""
    number = float(text)
    return number if math.isfinite(number) else text
