"""The chain of a job: digests of the beginnings of its prompt, by which its worker is chosen.

The chain of a conversation's next turn contains those of the turn before. Who makes the job makes
the chain, without a tokenizer; common_placement.lua compares digests and nothing else. Digests hold
the job's `cache_salt`, so only jobs that share cached prefixes have any in common.
"""

import json
from array import array
from collections.abc import Iterator
from hashlib import blake2b

from rose.protocol.jobs import ChatMessage, JobSpec

#: A turn that adds more messages than this, or pieces of text, is not recognised as one.
_LONGEST = 12

#: Bytes of a digest: a preference may be wrong once in 2**47 pairs.
_SIZE = 6

#: Text is cut after every KiB, and beyond 16 of these steps in steps of four times the size.
_PIECE, _PIECES, _FACTOR = 1024, 16, 4


def chain_of(job: JobSpec, session: str = "") -> str:
    """`DIGEST:TOKENS,...`, the longest beginning first; "" for a job without one. Tokens are
    estimated. `session`: what the client calls the conversation, which counts where no beginning is
    known.

    What all jobs of a caller begin with, tools and system messages, has no digest of its own.
    """
    if job.prompt_only or job.encode is not None:
        return ""
    salt = [job.cache_salt, job.adapter or ""]
    if job.tools or job.chat_template_kwargs:
        salt.append(json.dumps([job.tools, job.chat_template_kwargs], sort_keys=True))
    digest = blake2b("\0".join(salt).encode(errors="replace"), digest_size=_SIZE)
    begun = digest.copy()
    if messages := job.messages:
        links = [*_of_messages(digest, messages)]
    else:
        prompt = job.prompt
        text = prompt.encode() if isinstance(prompt, str) else array("I", job.token_ids).tobytes()
        links = [*_of_text(digest, text)]
    chain = [f"{name}:{tokens}" for name, tokens in reversed(links[-_LONGEST:])]
    if session:
        begun.update(b"\0session\0" + session.encode(errors="replace"))
        tokens = job.prompt_estimate
        chain.append(f"={begun.hexdigest()}:{tokens // 2}")
    return ",".join(chain)


def _of_messages(digest: "blake2b", messages: tuple[ChatMessage, ...]) -> Iterator[tuple[str, int]]:
    tokens, leads = 0, True
    for message in messages:
        # Without thoughts: chat templates leave out those of earlier turns, and so do clients.
        fields = [message.role, message.content, message.name or "", message.tool_call_id or ""]
        fields += (
            part
            for call in message.tool_calls
            for part in (call.id, call.function.name, call.function.arguments)
        )
        digest.update("\0".join((*map(_length, fields), *fields)).encode(errors="replace"))
        tokens += message.token_estimate
        leads = leads and message.role in ("system", "developer")
        if not leads:
            yield digest.hexdigest(), tokens


def _length(field: str) -> str:
    return str(len(field))


def _of_text(digest: "blake2b", text: bytes) -> Iterator[tuple[str, int]]:
    end, size = 0, _PIECE
    while end + size <= len(text):
        digest.update(text[end : end + size])
        end += size
        yield digest.hexdigest(), end // 4
        if end == size * _PIECES:
            size *= _FACTOR
