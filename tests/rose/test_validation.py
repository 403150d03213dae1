"""What is wrong with settings, in one line for people."""

import pytest

from rose.errors import ConfigurationError
from rose.validation import lone_surrogate
from rose_gateway.settings import GatewaySettings


def test_a_check_of_ours_speaks_in_its_own_words() -> None:
    with pytest.raises(ConfigurationError) as caught:
        GatewaySettings(aliases="[]")  # type: ignore[arg-type]
    assert str(caught.value).startswith("aliases: must be a JSON object of names")


@pytest.mark.parametrize(("text", "wrong"), [("", False), ("🐻\0", False), ("a\udc80", True)])
def test_text_that_utf_8_cannot_say(text: str, *, wrong: bool) -> None:
    assert (lone_surrogate(text) is not None) == wrong
