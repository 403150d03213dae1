"""From a prompt to a session: tokenizing, checking, and the state that sampling needs."""

import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any

from rose.errors import InvalidParameter, PromptTooLong
from rose.formats.registry import parser_of, shown_prompt_end, shown_special, thought_ends
from rose.sampling import Grammar, SamplingParams
from roseinfer.logits_processors.grammars import GrammarCompiler
from roseinfer.logits_processors.lazy import LazyGrammar, LazyMatcher, Vocabulary
from roseinfer.logits_processors.matcher import Matcher
from roseinfer.logits_processors.processor import LogitsProcessor
from roseinfer.logits_processors.thought_budget import ThoughtBudget
from roseinfer.sessions.session import InferenceSession, ends_of
from roseinfer.text import chat_template, tokenization
from roseinfer.text.detokenizer import Detokenizer

#: Compiled ones, which sessions make copies of.
_KEPT_GRAMMARS = 32


class SessionFactory:
    """Makes the sessions of one model, whatever computes its logits.

    `tokenizer` is transformers' own and may be None: token ids only. `context_length` is the most
    tokens, prompt and output together, that a request may have. `max_bytes_per_token` is the most
    bytes of prompt that one token can stand for, where that is certain. Threads may share it.
    """

    def __init__(
        self,
        tokenizer: Any | None,
        *,
        vocab_size: int,
        eos_token_ids: AbstractSet[int],
        context_length: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.context_length = context_length
        self.max_bytes_per_token = tokenization.max_bytes_per_token(tokenizer)
        self._detokenizer = Detokenizer(tokenizer.backend_tokenizer if tokenizer else None)
        self._grammars = GrammarCompiler(tokenizer, vocab_size, eos_token_ids)
        # Requests of one agent have the same tools: compiling them takes milliseconds.
        self._lazy = lru_cache(maxsize=_KEPT_GRAMMARS)(self._lazy_grammar)

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt. Raises InvalidParameter without a tokenizer."""
        return tokenization.encode(self.tokenizer, text)

    @property
    def has_chat_template(self) -> bool:
        return bool(chat_template.template_of(self.tokenizer))

    def token_bytes(self) -> list[bytes] | None:
        """The bytes of each token of the tokenizer by its id, special ones as their names; None if
        there is no tokenizer, or an unusual one. Takes up to a second; any thread may call it."""
        return self._grammars.token_bytes()

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_kwargs: Mapping[str, Any] = chat_template.NO_VARIABLES,
    ) -> list[int]:
        """Token ids of a conversation (`role` and `content` each), ready for the answer.

        Raises InvalidParameter if the model has no chat template or it refuses the messages.
        """
        return chat_template.encode_chat(self.tokenizer, messages, tools, template_kwargs)

    def new_session(
        self,
        prompt: str | Sequence[int],
        *,
        request_id: str | None = None,
        params: SamplingParams | None = None,
        generated_ids: Sequence[int] = (),
        cache_salt: str = "",
    ) -> InferenceSession:
        """A session for `prompt` (text or token ids), holding no blocks yet. It shares cached
        prefixes with sessions of the same `cache_salt`.

        It reads nothing that a step changes, so one thread may prepare sessions while another runs
        steps.

        Raises PromptTooLong if no token fits after the prompt, and InvalidParameter for an empty
        prompt, ids outside the vocabulary, a grammar that cannot be compiled or that
        `generated_ids` do not follow, and stop strings or a grammar without a tokenizer.
        """
        params = (params or SamplingParams()).seeded()
        prompt_ids = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_prompt(prompt_ids)
        self._check_ids("generated_ids", generated_ids)
        if params.stop and self.tokenizer is None:
            raise InvalidParameter(
                "stop needs a tokenizer: use stop_token_ids instead", param="stop"
            )
        self._check_ids("logit_bias", [token_id for token_id, _ in params.logit_bias])
        session = InferenceSession(
            request_id if request_id is not None else uuid.uuid4().hex,
            prompt_ids,
            params,
            self._detokenizer.stream(
                prompt_ids,
                params.stop,
                shown_special=params.shown_special,
                shown_prompt_end=params.shown_prompt_end,
            ),
            generated_ids=generated_ids,
            eos_token_ids=self.eos_token_ids,
            logits_processor=self.logits_processor(params, prompt_ids),
            context_length=self.context_length,
            cache_salt=cache_salt,
        )
        if session.error is not None:
            raise session.error
        return session

    def logits_processor(
        self, params: SamplingParams, prompt_ids: Sequence[int]
    ) -> LogitsProcessor | None:
        """What changes the logits of a request, as after its prompt; None if nothing does.

        Raises InvalidParameter for a grammar that cannot be compiled.
        """
        grammar = params.constraint
        if not params.needs_logits_processor:
            return None
        return LogitsProcessor(
            params,
            prompt_ids,
            ends=[i for i in ends_of(params, self.eos_token_ids) if i < self.vocab_size],
            matcher=self._matcher(grammar, params, prompt_ids) if grammar is not None else None,
            thoughts=self._thought_budget(params, prompt_ids),
        )

    def _thought_budget(
        self, params: SamplingParams, prompt_ids: Sequence[int]
    ) -> ThoughtBudget | None:
        """Raises InvalidParameter: how thoughts end is not known."""
        if params.thought_budget is None:
            return None
        form = params.thought_format
        texts = thought_ends(form)
        if not texts or self.tokenizer is None:
            raise InvalidParameter(
                f"thought_budget: nothing is known of thoughts in the format {form!r}"
                if not texts
                else "thought_budget needs a tokenizer, and this engine has none",
                param="thought_budget",
            )
        shown = shown_special("", form)
        return ThoughtBudget(
            params.thought_budget,
            parser_of(None, form),
            self._detokenizer.stream(prompt_ids, shown_special=shown),
            [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts],
            self._detokenizer.end_of(prompt_ids, shown_prompt_end(form)),
        )

    def _matcher(
        self, grammar: Grammar, params: SamplingParams, prompt_ids: Sequence[int]
    ) -> Matcher | LazyMatcher:
        opening = self._detokenizer.end_of(prompt_ids, params.shown_prompt_end)
        if params.grammar_triggers:
            lazy = self._lazy(
                grammar,
                params.grammar_triggers,
                params.thought_tags,
                params.shown_special,
                params.grammar_once,
            )
            return lazy.matcher(opening)
        state = self._grammars.compile(grammar)
        if grammar.thought_tags and opening == grammar.thought_tags[0]:
            for token_id in self._grammars.tokens_of(opening.encode()):
                state.consume_token(token_id)
        return Matcher(grammar.kind, state, self._grammars.mask_size)

    def _lazy_grammar(
        self,
        grammar: Grammar,
        triggers: Sequence[str],
        thought_tags: Sequence[str],
        shown_special: Sequence[str],
        once: bool,
    ) -> LazyGrammar:
        state = self._grammars.compile(grammar)
        size = self._grammars.mask_size
        return LazyGrammar(
            lambda: Matcher(grammar.kind, state.fresh(), size),
            Vocabulary(self._grammars, shown_special),
            triggers,
            thought_tags,
            once=once,
        )

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise InvalidParameter(
                "the prompt is empty: it must have at least one token", param="prompt"
            )
        if len(prompt_ids) >= self.context_length:
            raise PromptTooLong.of(len(prompt_ids), self.context_length)
        self._check_ids("prompt", prompt_ids)

    def _check_ids(self, name: str, ids: Sequence[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidParameter(
                    f"{name} holds the token id {token_id}: "
                    f"ids run from 0 to {self.vocab_size - 1}",
                    param=name,
                )
