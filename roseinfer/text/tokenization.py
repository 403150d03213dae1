"""From prompts to token ids, and the bytes that a token can stand for."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rose.errors import InvalidParameter
from rose.validation import lone_surrogate

# Byte-level vocabularies write each byte as one printable character.
_BYTE_ALPHABET_SIZE = 256

NOTHING: Mapping[str, Any] = MappingProxyType({})


def encode(tokenizer: Any | None, text: str) -> list[int]:
    """Token ids of a plain prompt, with the special tokens the tokenizer adds by itself.

    Raises InvalidParameter for text that is no Unicode, and without a tokenizer.
    """
    if (where := lone_surrogate(text)) is not None:
        raise InvalidParameter(f"prompt: {where}", param="prompt")
    ids: list[int] = _required(tokenizer).encode(text, verbose=False)
    return ids


def encode_chat(
    tokenizer: Any | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    template_kwargs: Mapping[str, Any] = NOTHING,
) -> list[int]:
    """Token ids of a conversation, up to where the assistant's answer begins.

    `messages` and `tools` are as in OpenAI's API for chats. A template that mentions no tools
    leaves them out. `template_kwargs` are variables of the template beside them, such as
    `enable_thinking`.

    Raises InvalidParameter if the model has no chat template or its template refuses `messages`.
    """
    tokenizer = _required(tokenizer)
    template = chat_template(tokenizer, tools)
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
        ids: list[int] = tokenizer.apply_chat_template(
            conversation,
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **template_kwargs,
        )
    except Exception as error:
        # Templates are programs of the model's authors: whatever they raise is about the messages.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidParameter(
            f"the chat template refused the messages: {reason}", param="prompt"
        ) from error
    return ids


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


def chat_template(tokenizer: Any | None, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of the model's chat template, "" if it has none. Some models have one of their own
    for tools, and some only templates for other purposes."""
    templates = getattr(tokenizer, "chat_template", None)
    purposes = {"default", "tool_use"} if tools else {"default"}
    if not templates or (isinstance(templates, dict) and not purposes & templates.keys()):
        return ""
    tokenizer = _required(tokenizer)
    text: str = tokenizer.get_chat_template(tools=list(tools) or None)
    return text


def _for_template(message: Mapping[str, Any], template: str) -> dict[str, Any]:
    """A message as templates expect it: arguments of calls as objects, and `developer`, which is a
    newer name of `system`, only where the template knows it."""
    fields = dict(message)
    if fields["role"] == "developer" and "developer" not in template:
        fields["role"] = "system"
    if calls := fields.get("tool_calls"):
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


def _required(tokenizer: Any | None) -> Any:
    if tokenizer is None:
        raise InvalidParameter(
            "this engine has no tokenizer: give token ids instead of text", param="prompt"
        )
    return tokenizer


def max_bytes_per_token(tokenizer: Any | None) -> int | None:
    """The most UTF-8 bytes of a prompt that one token can stand for, or None if unknown.

    It is certain for byte-level vocabularies that drop, rewrite and absorb nothing. With it, a
    text of more than `max_bytes_per_token * n` bytes is known to need more than n tokens without
    tokenizing it.
    """
    if tokenizer is None:
        return None
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    if spec["normalizer"] is not None or spec["model"].get("type") != "BPE":
        return None
    if not _keeps_every_byte(spec["pre_tokenizer"]):
        return None
    added = spec["added_tokens"]
    if any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    names = {token["content"] for token in added}
    ordinary = [token for token in spec["model"]["vocab"] if token not in names]
    if sum(len(token) == 1 for token in ordinary) < _BYTE_ALPHABET_SIZE:
        return None
    sizes = [len(token) for token in ordinary] + [len(name.encode()) for name in names]
    return max(sizes)


def _keeps_every_byte(pre_tokenizer: dict[str, Any] | None) -> bool:
    """True for a pre-tokenizer that maps text to the byte alphabet and discards nothing."""
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    else:
        steps = [pre_tokenizer]
    kept = {"ByteLevel", "Digits", "Split"}
    return (
        any(step["type"] == "ByteLevel" for step in steps)
        and all(step["type"] in kept for step in steps)
        and all(step.get("behavior") != "Removed" for step in steps)
    )
