"""From what a job says to token ids, in the worker or in a child of its preparer."""

import json
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rose.errors import InvalidParameter, InvalidRequest
from rose.protocol import ChatMessage, JobSpec, decode_job
from rose.sampling import Grammar
from rose_worker import preparer
from roseinfer.encoders.tokens import EncodedInput, InputRules, InputTokenizer, packed
from roseinfer.logits_processors.grammars import GrammarCompiler
from roseinfer.text import chat_template, tokenization
from roseinfer.text.answer_formats import answer_formats


def prompt_ids(job: JobSpec, tokenizer: Any | None) -> list[int]:
    """Raises: InvalidParameter"""
    if isinstance(job.prompt, str):
        return tokenization.encode(tokenizer, job.prompt)
    if job.messages:
        messages = [_for_template(message) for message in job.messages]
        return chat_template.encode_chat(
            tokenizer,
            messages,
            job.tools,
            job.chat_template_kwargs,
            continue_final=job.continue_final_message,
        )
    return list(job.token_ids)


def _for_template(message: ChatMessage) -> dict[str, Any]:
    """Templates ask whether a field is there: what is not set is left out."""
    fields = message.model_dump(exclude_none=True)
    if not message.tool_calls:
        del fields["tool_calls"]
    return fields


def encoded_inputs(job: JobSpec, tokenizer: InputTokenizer) -> list[EncodedInput]:
    """Of a job with `encode`. Raises: InvalidParameter, PromptTooLong"""
    options = job.encode
    if options is None:
        raise InvalidParameter("encode: the job has none", param="encode")
    if options.task == "embed":
        return tokenizer.tokenize(
            job.inputs,
            prompt_name=options.prompt_name,
            input_type=options.input_type,
            truncate=options.truncate,
        )
    texts = [one for one in job.inputs if isinstance(one, str)]
    queries = options.queries * (len(texts) if len(options.queries) == 1 else 1)
    pairs = list(zip(queries, texts, strict=True))
    return tokenizer.tokenize_pairs(pairs, truncate=options.truncate)


class InputModel:
    """As `PromptModel`, of a model that encodes."""

    formats: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, rules: dict[str, Any]) -> None:
        """`rules`: the fields of `InputRules`."""
        self._tokenizer = InputTokenizer(InputRules(**rules))

    def prepare(self, kind: bytes, request: bytes) -> tuple[bytes, bytes]:  # noqa: ARG002
        """The kind of answer, and the answer. Raises MemoryError."""
        return _answered(
            lambda: packed(encoded_inputs(decode_job(request), self._tokenizer)), preparer.IDS
        )


class PromptModel:
    """What of a model is needed to prepare its jobs, in the preparer."""

    def __init__(self, described: dict[str, Any]) -> None:
        """`described`: see `preparer.describe`."""
        self._tokenizer = None
        if described["tokenizer"] is not None:
            self._tokenizer = PreTrainedTokenizerFast(
                tokenizer_object=Tokenizer.from_str(described["tokenizer"]), **described["special"]
            )
            self._tokenizer.chat_template = described["chat_template"]
        self._grammars = GrammarCompiler(
            self._tokenizer, described["vocab_size"], frozenset(described["ends"])
        )
        self._grammars.token_bytes()  # makes the vocabulary, which children share
        self.formats = answer_formats(self._tokenizer)

    def prepare(self, kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        """The kind of answer, and the answer. Raises MemoryError."""
        if kind == preparer.GRAMMAR:
            return _answered(lambda: self._try_out(request), preparer.DONE)
        return _answered(lambda: self._ids(request), preparer.IDS)

    def _try_out(self, request: bytes) -> bytes:
        name, source, is_lazy, thought_tags = json.loads(request)
        self._grammars.try_out(Grammar(name, source, is_lazy, tuple(thought_tags)))
        return b""

    def _ids(self, request: bytes) -> bytes:
        return array("i", prompt_ids(decode_job(request), self._tokenizer)).tobytes()


def model_of(described: dict[str, Any]) -> PromptModel | InputModel:
    """By what `Preparer` has described."""
    if (rules := described.get("inputs")) is not None:
        return InputModel(rules)
    return PromptModel(described)


def _answered(work: Callable[[], bytes], kind: bytes) -> tuple[bytes, bytes]:
    """Raises MemoryError."""
    try:
        return kind, work()
    except MemoryError:
        raise
    except InvalidRequest as error:
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__ from None
        reason = {"message": str(error), "param": error.param, "code": error.code}
    except Exception as error:  # noqa: BLE001 - its message may quote the prompt
        reason = {"type": type(error).__name__}
    return preparer.ERROR, json.dumps(reason).encode()
