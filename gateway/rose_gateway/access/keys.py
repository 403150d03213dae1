"""API keys: made, looked up, revoked. Redis holds their hashes only."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rose import transport
from rose.errors import InvalidParameter, RoseError
from rose.settings import QueueSettings
from rose_gateway.settings import KeyLimits

#: Hash: JSON of each key, by its id.
KEYS = "rose:gateway:keys"

_SECRET = re.compile(r"rose-([0-9a-f]{12})-([A-Za-z0-9_-]{20,100})")
#: How long a gateway believes what it has read: a revoked key is refused after that.
FRESH_S = 3.0
_MAX_CACHED = 10_000


class KeyNotFound(RoseError):
    code = "key_not_found"


class ApiKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    name: str
    secret_sha256: str
    created: int
    """Unix seconds"""
    limits: KeyLimits = KeyLimits()
    tenant: str = ""
    """whose share its jobs come out of; "" for nobody's"""
    revoked: int | None = None
    """Unix seconds"""

    def is_secret(self, secret: str) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(_sha256(secret), self.secret_sha256)


class Keys:
    """Belongs to one event loop. What it reads, it believes for a few seconds."""

    def __init__(
        self, redis: transport.AsyncRedisClient, default_limits: KeyLimits | None = None
    ) -> None:
        """`default_limits`: of keys that have none of their own, and of callers without a key."""
        self._redis = redis
        self.default_limits = default_limits or KeyLimits()
        self._cache: dict[str, tuple[float, ApiKey | None]] = {}
        self._any: tuple[float, bool] = (float("-inf"), False)

    async def create(self, name: str, limits: KeyLimits, tenant: str = "") -> tuple[ApiKey, str]:
        """The key, and its secret, which nobody can read again. `tenant`: checked.

        Raises: BrokerUnavailable
        """
        key_id = secrets.token_hex(6)
        secret = f"rose-{key_id}-{secrets.token_urlsafe(32)}"
        key = ApiKey(
            id=key_id,
            name=name,
            secret_sha256=_sha256(secret),
            created=int(time.time()),
            limits=limits,
            tenant=tenant,
        )
        await self._write(key)
        return key, secret

    async def list(self) -> Sequence[ApiKey]:
        """Oldest first, the revoked among them. Raises: BrokerUnavailable"""
        with transport.broker_errors():
            flat = await self._redis.execute("HGETALL", KEYS)
        keys = [key for raw in flat[1::2] if (key := _read(raw)) is not None]
        return sorted(keys, key=lambda key: (key.created, key.id))

    async def find(self, id_or_name: str) -> ApiKey:
        """The key of this id, or the only one of this name that is not revoked.

        Raises: KeyNotFound, BrokerUnavailable; InvalidParameter: several have the name.
        """
        keys = await self.list()
        named = [key for key in keys if key.name == id_or_name and key.revoked is None]
        found = [key for key in keys if key.id == id_or_name] or named
        if not found:
            raise _not_found(id_or_name)
        if len(found) > 1:
            ids = ", ".join(key.id for key in found)
            raise InvalidParameter(f"{len(found)} keys are named {id_or_name!r}: say which, {ids}")
        return found[0]

    async def revoke(self, key_id: str) -> ApiKey:
        """Raises: KeyNotFound, BrokerUnavailable"""
        key = await self._known(key_id)
        if key.revoked is None:
            key = key.model_copy(update={"revoked": int(time.time())})
            await self._write(key)
        return key

    async def assign(self, key_id: str, tenant: str) -> ApiKey:
        """From now on its jobs are this tenant's, which is checked; "": nobody's.

        Raises: KeyNotFound, BrokerUnavailable
        """
        key = (await self._known(key_id)).model_copy(update={"tenant": tenant})
        await self._write(key)
        return key

    async def rename_tenant(self, old: str, new: str) -> Sequence[str]:
        """Give the keys of one tenant to another, which is checked. Returns their ids.

        Raises: BrokerUnavailable
        """
        ids = [key.id for key in await self.list() if key.tenant == old]
        for key_id in ids:
            await self.assign(key_id, new)
        return ids

    async def exist(self) -> bool:
        """Whether any key was ever made. Raises: BrokerUnavailable"""
        read_at, there_are = self._any
        now = time.monotonic()
        if now - read_at > FRESH_S:
            with transport.broker_errors():
                there_are = bool(await self._redis.execute("HLEN", KEYS))
            self._any = now, there_are
        return there_are

    async def of_secret(self, secret: str) -> ApiKey | None:
        """None: it is no key's secret, or the key was revoked. Raises: BrokerUnavailable"""
        match = _SECRET.fullmatch(secret)
        if match is None:
            return None
        key = await self._cached(match[1])
        return key if key is not None and key.is_secret(secret) and key.revoked is None else None

    async def of_id(self, key_id: str) -> ApiKey | None:
        """For what goes on after its request. None: no such key, or it was revoked.

        Raises: BrokerUnavailable
        """
        key = await self._cached(key_id)
        return key if key is not None and key.revoked is None else None

    async def _cached(self, key_id: str) -> ApiKey | None:
        now = time.monotonic()
        read_at, key = self._cache.get(key_id, (float("-inf"), None))
        if now - read_at > FRESH_S:
            key = await self._fetch(key_id)
            if key is not None:
                own = key.limits.model_dump(exclude_defaults=True)
                limits = self.default_limits.model_copy(update=own)
                key = key.model_copy(update={"limits": limits})
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[key_id] = now, key
        return key

    async def _known(self, key_id: str) -> ApiKey:
        """Raises: KeyNotFound, BrokerUnavailable"""
        key = await self._fetch(key_id)
        if key is None:
            raise _not_found(key_id)
        return key

    async def _fetch(self, key_id: str) -> ApiKey | None:
        with transport.broker_errors():
            raw = await self._redis.execute("HGET", KEYS, key_id)
        return None if raw is None else _read(raw)

    async def _write(self, key: ApiKey) -> None:
        with transport.broker_errors():
            await self._redis.execute("HSET", KEYS, key.id, key.model_dump_json())


def open_keys(settings: QueueSettings) -> tuple[Keys, transport.AsyncRedisClient]:
    """For a command; close the client."""
    redis = transport.AsyncRedisClient(settings)
    return Keys(redis), redis


def _read(raw: Any) -> ApiKey | None:
    """None: somebody else has written there; nobody has this key."""
    try:
        return ApiKey.model_validate_json(raw)
    except ValidationError:
        return None


def _not_found(key: str) -> KeyNotFound:
    return KeyNotFound(f"no key {key}: `rose keys list` shows those that there are")


def _sha256(secret: str) -> str:
    # The secret has 256 random bits: a slow hash would protect nothing more.
    return hashlib.sha256(secret.encode()).hexdigest()
