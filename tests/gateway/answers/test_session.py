"""What clients call a conversation."""

import pytest
from starlette.datastructures import Headers

from rose_gateway.answers.endpoint import session_of
from rose_gateway.messages.schema import CreateMessage
from rose_gateway.messages.submission import session_in


@pytest.mark.parametrize(
    "name",
    ["X-Claude-Code-Session-Id", "session-id", "session_id", "x-session-affinity", "X-Session-Id"],
)
def test_agents_name_it_in_a_header(name: str) -> None:
    assert session_of(Headers({name: "abc", "other": "x"})) == "abc"
    assert session_of(Headers({"other": "x"})) is None
    assert len(session_of(Headers({name: "x" * 5000})) or "") == 256


@pytest.mark.parametrize(
    ("user", "session"),
    [("user_1_account__session_2", "user_1_account__session_2"), ("somebody", None), (None, None)],
)
def test_claude_code_names_it_in_its_metadata(user: str | None, session: str | None) -> None:
    message = {"role": "user", "content": "x"}
    request = CreateMessage.model_validate(
        {"model": "m", "max_tokens": 1, "messages": [message], "metadata": {"user_id": user}}
    )
    assert session_in(request) == session
