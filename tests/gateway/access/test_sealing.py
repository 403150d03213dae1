"""A thought that a client keeps comes back as it went, from whom it went to."""

import asyncio

import pytest
from pydantic import SecretStr

from rose import transport
from rose.errors import ConfigurationError
from rose_gateway.access.authentication import Caller
from rose_gateway.access.sealing import Seal, SealBroken, Sealing, audience_of
from rose_gateway.settings import GatewaySettings

OLD, NEW = "o" * 32, "n" * 40
THOUGHT = "Hm, \U0001f98a \ud800 well.\n" * 50


def seal(keys: str = OLD, audience: str = "key a") -> Seal:
    settings = GatewaySettings(seal_keys=SecretStr(keys))

    async def made() -> Seal:
        return await Sealing(transport.AsyncRedisClient(settings), settings).seal(audience)

    return asyncio.run(made())


@pytest.mark.parametrize("text", ["", "Hm.", THOUGHT])
def test_a_thought_comes_back_as_it_went(text: str) -> None:
    assert seal().opened(seal().closed(text)) == text


def test_a_replay_shows_the_same_and_nobody_reads_it() -> None:
    assert seal().closed(THOUGHT) == seal().closed(THOUGHT)
    assert "well" not in seal().closed(THOUGHT)
    assert seal().closed(THOUGHT).isascii()


def test_a_new_key_opens_what_an_old_one_has_sealed() -> None:
    sealed = seal(OLD).closed("Hm.")

    assert seal(f"{NEW}, {OLD}").opened(sealed) == "Hm."
    assert seal(f"{NEW},{OLD}").closed("Hm.") == seal(NEW).closed("Hm.")
    with pytest.raises(SealBroken):
        seal(NEW).opened(sealed)


def test_nobody_else_opens_it() -> None:
    with pytest.raises(SealBroken):
        seal(audience="key b").opened(seal(audience="key a").closed("Hm."))


@pytest.mark.parametrize(
    "other", ["", "x", "rose-sealed-1.", "rose-sealed-1.AAAA", "gAAAA" * 40, "ä"]
)
def test_what_was_not_sealed_here_is_not_opened(other: str) -> None:
    with pytest.raises(SealBroken):
        seal().opened(other)


def test_no_change_goes_unnoticed() -> None:
    sealed = seal().closed("Hm, well.")
    for place in range(len(sealed) - 1):  # the last character has bits that mean nothing
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        with pytest.raises(SealBroken):
            seal().opened(changed)
        with pytest.raises(SealBroken):
            seal().opened(sealed[:place])


def test_it_is_bound_to_a_tenant_else_to_a_key() -> None:
    audiences = {
        audience_of(caller)
        for caller in (
            *(Caller("a"), Caller("b"), Caller()),
            *(Caller("a", tenant="t"), Caller("b", tenant="t"), Caller(tenant="a")),
        )
    }

    assert audiences == {"key a", "key b", "key ", "tenant t", "tenant a"}


def test_a_short_key_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ConfigurationError, match="at least 32"):
        GatewaySettings(seal_keys=SecretStr(f"{OLD},short"))
    assert OLD not in repr(GatewaySettings(seal_keys=SecretStr(OLD)))
