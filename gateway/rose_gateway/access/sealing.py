"""Thoughts that a client keeps for a model: sealed when they leave, opened when they come back.

A seal is AES-SIV (RFC 5297): the same text gives the same seal, as every replay of an answer must,
and whoever changes one is found out. It is bound to whom it was given: to a tenant, else to an API
key.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from rose import transport
from rose_gateway.access.authentication import Caller
from rose_gateway.settings import GatewaySettings

#: String: the key of a deployment whose setting names none.
KEY = "rose:gateway:seal"

_PREFIX = "rose-sealed-1."
#: A seal of nothing is none.
_HEAD = b"t"


class SealBroken(Exception):
    """It was sealed elsewhere, for another, or was changed."""


class Seal:
    """For one audience."""

    def __init__(self, ciphers: Sequence[AESSIV], audience: str) -> None:
        """The first of `ciphers` seals, all of them open."""
        self._ciphers, self._context = ciphers, [audience.encode()]

    def closed(self, text: str) -> str:
        data = _HEAD + text.encode("utf-8", "surrogatepass")
        sealed = self._ciphers[0].encrypt(data, self._context)
        return _PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def opened(self, sealed: str) -> str:
        """Raises: SealBroken"""
        try:
            data = base64.b64decode(sealed.removeprefix(_PREFIX), b"-_", validate=True)
        except ValueError:
            data = b""
        for cipher in self._ciphers if sealed.startswith(_PREFIX) and data else ():
            try:
                plain = cipher.decrypt(data, self._context)
            except InvalidTag:
                continue
            return plain.removeprefix(_HEAD).decode("utf-8", "surrogatepass")
        raise SealBroken


def audience_of(caller: Caller) -> str:
    """To whom what a caller gets is bound."""
    return f"tenant {caller.tenant}" if caller.tenant else f"key {caller.key_id}"


class Sealing:
    """Belongs to one event loop."""

    def __init__(self, redis: transport.AsyncRedisClient, settings: GatewaySettings) -> None:
        self._redis = redis
        given = settings.seal_keys.get_secret_value() if settings.seal_keys else ""
        self._ciphers = [_cipher(key) for name in given.split(",") if (key := name.strip())]

    async def seal(self, audience: str) -> Seal:
        """Raises: BrokerUnavailable: the key must be read, and cannot be."""
        if not self._ciphers:
            with transport.broker_errors():
                # The first gateway that needs one draws it.
                await self._redis.execute("SET", KEY, secrets.token_urlsafe(48), "NX")
                drawn = await self._redis.execute("GET", KEY)
            self._ciphers = [_cipher(drawn.decode())]
        return Seal(self._ciphers, audience)


def _cipher(key: str) -> AESSIV:
    return AESSIV(hashlib.blake2b(key.encode(), person=b"rose-seal").digest())
