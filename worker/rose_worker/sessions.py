"""From jobs to the sessions of `roseinfer`, the same for every engine that has a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from rose.errors import InvalidParameter
from rose.protocol import ChatMessage, JobSpec, most_prompt_logprobs
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession


def session_of(
    job: JobSpec, generated_ids: Sequence[int], factory: SessionFactory
) -> InferenceSession:
    """The session of a job of which `generated_ids` are logged.

    Raises: InvalidParameter, PromptTooLong
    """
    session = factory.new_session(
        _prompt_ids(job, factory),
        request_id=job.id,
        # The same seed wherever the job goes next.
        params=job.sampling.seeded(_seed_of(job.id)),
        generated_ids=generated_ids,
        cache_salt=job.cache_salt,
    )
    if job.sampling.prompt_logprobs:
        _check_one_event_holds(session)
    return session


def _check_one_event_holds(session: InferenceSession) -> None:
    """Raises: InvalidParameter"""
    top = session.params.top_logprobs
    most = most_prompt_logprobs(top)
    if session.prompt_length > most:
        raise InvalidParameter(
            f"prompt_logprobs: the prompt has {session.prompt_length} tokens, and with "
            f"top_logprobs={top} an event holds those of {most}: ask for fewer, or send less",
            param="prompt_logprobs",
        )


def _prompt_ids(job: JobSpec, factory: SessionFactory) -> list[int]:
    if isinstance(job.prompt, str):
        return factory.encode(job.prompt)
    if job.messages:
        messages = [_for_template(message) for message in job.messages]
        return factory.encode_chat(messages, job.tools, job.chat_template_kwargs)
    return list(job.token_ids)


def _for_template(message: ChatMessage) -> dict[str, Any]:
    """Templates ask whether a field is there: what is not set is left out."""
    fields = message.model_dump(exclude_none=True)
    if not message.tool_calls:
        del fields["tool_calls"]
    return fields


def _seed_of(job_id: str) -> int:
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:7], "big")
