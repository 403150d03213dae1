"""From texts to the tokens that an encoder reads, without torch: a process of its own may do it."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from tokenizers import Encoding, Tokenizer

from rose.errors import InvalidParameter, PromptTooLong
from rose.validation import lone_surrogate
from roseinfer.text.special_text import CUT, cut_text, special_names

#: Texts whose encodings, each some hundred bytes a token, are there at once.
_AT_ONCE = 16

Text = str | tuple[str, str]

#: What models call their prompts, in small letters, by what texts are for.
_PROMPTS_FOR: Mapping[str, Sequence[str]] = {
    "query": ("query", "search_query", "retrieval.query", "s2p_query"),
    "document": ("document", "passage", "search_document", "retrieval.passage", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """The tokens of a text, or of a pair of texts."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None
    """0 for those of the first text and 1 for the second's, for a model that tells them apart"""
    prompt_tokens: int = 0
    """of the prompt before it, where these take no part in the pooling"""


@dataclass(frozen=True, slots=True)
class InputRules:
    """What tokens depend on."""

    model: str
    """its name, for messages"""
    tokenizer: str
    """as JSON"""
    max_tokens: int
    """of an input"""
    vocab_size: int
    lower_case: bool
    prompts: Mapping[str, str]
    default_prompt: str | None
    pools_prompt: bool
    has_types: bool
    special_ids: Sequence[int]
    """which may stand behind a text"""
    cuts_beginning: bool = False
    """of what is too long, not its end"""
    pair_format: Sequence[str] = ()
    """see input_format.InputFormat; (): the tokenizer itself joins the texts of a pair"""
    text_formats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """of a text, by the prompt before it, "" included; {}: it is tokenized as it is"""


class InputTokenizer:
    def __init__(self, rules: InputRules) -> None:
        self.rules = rules
        self._tokenizer = Tokenizer.from_str(rules.tokenizer)
        self._cutting = Tokenizer.from_str(rules.tokenizer)
        side = "left" if rules.cuts_beginning else "right"
        self._cutting.enable_truncation(rules.max_tokens, direction=side)
        self._prompt_lengths: dict[str, int] = {}
        self._special_names = special_names(self._tokenizer)

    def tokenize(
        self,
        inputs: Sequence[str | Sequence[int]],
        *,
        prompt_name: str | None = None,
        input_type: str | None = None,
        truncate: bool = False,
    ) -> list[EncodedInput]:
        """Texts, each behind the prompt of this name, or else for this type if the model has one,
        and token ids, which stay as they are.

        Raises: InvalidParameter, PromptTooLong
        """
        prompt = self._prompt(self._prompt_for(input_type) if prompt_name is None else prompt_name)
        texts = [one for one in inputs if isinstance(one, str)]
        if self.rules.text_formats:
            parts = self.rules.text_formats[prompt]
            encoded = self._formatted([{"text": one} for one in texts], parts, truncate=truncate)
        else:
            left_out = 0 if self.rules.pools_prompt else self._length_of(prompt)
            whole = (self._cleaned(prompt + one) for one in texts)
            encoded = self._encoded(whole, left_out, truncate=truncate)
        return [
            next(encoded) if isinstance(one, str) else self._given(one, truncate=truncate)
            for one in inputs
        ]

    def tokenize_pairs(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False
    ) -> list[EncodedInput]:
        """Pairs of a query and a document. Raises: InvalidParameter, PromptTooLong"""
        if self.rules.pair_format:
            texts = [{"query": query, "document": document} for query, document in pairs]
            return list(self._formatted(texts, self.rules.pair_format, truncate=truncate))
        prompt = self._prompt(None)
        cleaned = ((self._cleaned(prompt + one), self._cleaned(two)) for one, two in pairs)
        return list(self._encoded(cleaned, 0, truncate=truncate))

    def _prompt_for(self, input_type: str | None) -> str | None:
        """The name of a prompt."""
        names = {name.lower(): name for name in self.rules.prompts}
        known = _PROMPTS_FOR.get(input_type or "", ())
        return next((names[name] for name in known if name in names), None)

    def _prompt(self, name: str | None) -> str:
        """Raises: InvalidParameter"""
        name = self.rules.default_prompt if name is None else name
        if not name:
            return ""
        if name not in self.rules.prompts:
            known = ", ".join(self.rules.prompts) or "none"
            raise InvalidParameter(
                f"prompt_name: {self.rules.model} has no prompt {name!r}, only: {known}",
                param="prompt_name",
            )
        return self.rules.prompts[name]

    def _encoded(
        self, texts: Iterable[Text], left_out: int, *, truncate: bool
    ) -> Iterator[EncodedInput]:
        remaining = iter(texts)
        while some := list(islice(remaining, _AT_ONCE)):
            encodings = self._encodings(some, truncate=truncate)
            for encoding in encodings:
                self._check_length(len(encoding))
            yield from (self._input(encoding, left_out) for encoding in encodings)

    def _formatted(
        self, inputs: Iterable[Mapping[str, str]], parts: Sequence[str], *, truncate: bool
    ) -> Iterator[EncodedInput]:
        """Texts by their names in a format of these parts. Where they are too long, what is cut
        stands before the end of the format."""
        end = tuple(self._encodings(parts[-1:], special=False)[0].ids)
        remaining = iter(inputs)
        while some := [self._written(texts, parts) for texts in islice(remaining, _AT_ONCE)]:
            encodings = iter(self._encodings(list(chain.from_iterable(some)), special=False))
            for pieces in some:
                ids = tuple(chain.from_iterable(next(encodings).ids for _ in pieces))
                if truncate and len(ids) > self.rules.max_tokens:
                    ids = ids[: max(0, self.rules.max_tokens - len(end))] + end
                self._check_length(len(ids))
                yield EncodedInput(ids)

    def _written(self, texts: Mapping[str, str], parts: Sequence[str]) -> list[str]:
        """In pieces that are tokenized each by itself: see special_text."""
        written = (
            part if place % 2 == 0 else self._own(texts[part]) for place, part in enumerate(parts)
        )
        return "".join(written).split(CUT)

    def _own(self, text: str) -> str:
        text, names = self._cleaned(text), self._special_names
        return text if names is None else cut_text(text, names)

    def _encodings(
        self, texts: Sequence[Text], *, truncate: bool = False, special: bool = True
    ) -> list[Encoding]:
        """`special`: with the tokens that the tokenizer adds by itself."""
        tokenizer = self._cutting if truncate else self._tokenizer
        try:
            return tokenizer.encode_batch(texts, add_special_tokens=special)
        except Exception as error:  # the tokenizers library has no other
            raise InvalidParameter(
                f"prompt: the tokenizer cannot read a text: {error}",
                param="prompt",
            ) from error

    def _cleaned(self, text: str) -> str:
        """Raises: InvalidParameter"""
        if (where := lone_surrogate(text)) is not None:
            raise InvalidParameter(f"prompt: {where}", param="prompt")
        return text.lower() if self.rules.lower_case else text

    def _check_length(self, length: int) -> None:
        if length > self.rules.max_tokens:
            raise PromptTooLong.of(length, self.rules.max_tokens)
        if length == 0:
            raise InvalidParameter(
                "prompt: an input is empty: it must have at least one token", param="prompt"
            )

    def _input(self, encoding: Encoding, left_out: int) -> EncodedInput:
        types = tuple(encoding.type_ids) if self.rules.has_types else ()
        return EncodedInput(tuple(encoding.ids), types if any(types) else None, left_out)

    def _given(self, ids: Sequence[int], *, truncate: bool) -> EncodedInput:
        if not all(0 <= token_id < self.rules.vocab_size for token_id in ids):
            raise InvalidParameter(
                f"prompt: a token id of {self.rules.model} is from 0 to "
                f"{self.rules.vocab_size - 1}",
                param="prompt",
            )
        ids = ids[: self.rules.max_tokens] if truncate else ids
        self._check_length(len(ids))
        return EncodedInput(tuple(ids))

    def _length_of(self, prompt: str) -> int:
        """Its tokens, with the special ones before it and without the one behind it."""
        if not prompt:
            return 0
        if prompt not in self._prompt_lengths:
            ids = self._tokenizer.encode(self._cleaned(prompt)).ids
            self._prompt_lengths[prompt] = len(ids) - (ids[-1] in self.rules.special_ids)
        return self._prompt_lengths[prompt]


def packed(inputs: Iterable[EncodedInput]) -> bytes:
    """Of each the numbers of its ids, of its types and of its prompt's tokens; ids; types."""
    numbers = array("i")
    for one in inputs:
        types = one.types or ()
        numbers.extend((len(one.ids), len(types), one.prompt_tokens, *one.ids, *types))
    return numbers.tobytes()


def unpacked(data: bytes) -> list[EncodedInput]:
    """What `packed` was given."""
    numbers = array("i", data)
    inputs, start = [], 0
    while start < len(numbers):
        ids, types, prompt_tokens = numbers[start : start + 3]
        start += 3
        own = tuple(numbers[start : start + ids])
        start += ids
        second = tuple(numbers[start : start + types]) or None
        start += types
        inputs.append(EncodedInput(own, second, prompt_tokens))
    return inputs
