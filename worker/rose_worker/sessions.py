"""From jobs to the sessions of `roseinfer`, the same for every engine that has a model."""

import hashlib
from collections.abc import Sequence

from rose.errors import InvalidParameter
from rose.protocol import JobSpec, most_prompt_logprobs
from rose_worker.preparation import Preparer
from rose_worker.prompts import prompt_ids
from roseinfer.sessions.factory import SessionFactory
from roseinfer.sessions.session import InferenceSession
from roseinfer.text.tool_format import tool_format


def session_of(
    job: JobSpec, generated_ids: Sequence[int], factory: SessionFactory
) -> InferenceSession:
    """The session of a job of which `generated_ids` are logged.

    Raises: InvalidParameter, PromptTooLong
    """
    session = factory.new_session(
        prompt_ids(job, factory.tokenizer),
        request_id=job.id,
        # The same seed wherever the job goes next.
        params=job.sampling.seeded(_seed_of(job.id)),
        generated_ids=generated_ids,
        cache_salt=job.cache_salt,
    )
    if job.sampling.prompt_logprobs:
        _check_one_event_holds(session)
    return session


def tool_format_of(factory: SessionFactory, preparer: Preparer | None) -> str:
    """How the model's template writes calls of functions. From here on `preparer`, if there is
    one, prepares jobs.

    Raises: UnsupportedModel: tokenizer or template take too much.
    """
    if preparer is None:
        return tool_format(factory.tokenizer)
    return preparer.load(factory.tokenizer, factory.vocab_size, factory.eos_token_ids)


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


def _seed_of(job_id: str) -> int:
    return int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:7], "big")
