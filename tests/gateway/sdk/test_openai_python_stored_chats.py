"""Stored chat completions by openai-python, unmodified."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.gateway.sdk.deployments import CHAT, ECHO, Deployment


def chat(client: OpenAI, said: str, **options: Any) -> str:
    messages: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": said}]
    asked: dict[str, Any] = {"model": ECHO, "messages": messages, "max_tokens": 1, **options}
    return client.chat.completions.create(**asked).id


def test_a_stored_chat_is_found_with_its_messages_until_it_is_deleted(
    client: OpenAI, deployment: Deployment
) -> None:
    # given
    completion_id = chat(client, "hi", store=True, metadata={"night": "7"})
    # then
    found = client.chat.completions.retrieve(completion_id)
    assert (found.id, found.choices[0].message.content) == (completion_id, "98 ")
    # By the types of the SDK all messages are the assistant's.
    with OpenAI(base_url=deployment.url, api_key="none") as lenient:
        messages = list(lenient.chat.completions.messages.list(completion_id, limit=1))
    assert [(message.role, message.content) for message in messages] == [
        ("system", "be kind"),
        ("user", "hi"),
    ]
    # when
    assert client.chat.completions.delete(completion_id).deleted
    # then
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(completion_id)


def test_only_what_was_to_be_stored_is_listed(client: OpenAI) -> None:
    # given
    stored = [chat(client, f"hi {number}", store=True) for number in range(3)]
    others = [chat(client, "hi"), chat(client, "hi", store=False)]
    # then
    oldest_first = [one.id for one in client.chat.completions.list(limit=2)]
    assert [one for one in oldest_first if one in stored] == stored
    assert not set(others) & set(oldest_first)
    newest_first = client.chat.completions.list(order="desc", model=ECHO)
    assert newest_first.data[0].id == stored[-1]
    assert client.chat.completions.list(model=CHAT).data == []
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(others[0])
