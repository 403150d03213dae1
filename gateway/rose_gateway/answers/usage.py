"""How many tokens a request has used."""

from typing import Any

from pydantic import BaseModel

from rose.protocol import Event, FinishedEvent


class PromptTokensDetails(BaseModel):
    cached_tokens: int = 0
    """of the prompt, found in the worker's prefix cache"""
    audio_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


_PROMPT_DETAILS = PromptTokensDetails().model_dump()
_COMPLETION_DETAILS = CompletionTokensDetails().model_dump()


class UsageCounter:
    """Adds up the choices of a request. Those of one prompt read it once."""

    def __init__(self, choices_of_a_prompt: int) -> None:
        self._choices_of_a_prompt = choices_of_a_prompt
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion = 0

    def ended(self, choice: int, event: Event) -> None:
        """`event` is the last one of its choice."""
        self._completion += event.index
        if isinstance(event, FinishedEvent):
            prompt = choice // self._choices_of_a_prompt
            cached = event.cached_tokens or 0
            known, least_cached = self._prompts.get(prompt, (event.prompt_tokens, cached))
            self._prompts[prompt] = (known, min(least_cached, cached))

    def usage(self) -> dict[str, Any]:
        """As `Usage`; made by hand, since every answer has one."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion,
            "total_tokens": prompt + self._completion,
            "prompt_tokens_details": {**_PROMPT_DETAILS, "cached_tokens": cached},
            "completion_tokens_details": {**_COMPLETION_DETAILS},
        }
