"""Which queue, and how to reach it: what producers and workers both set (`ROSE_...`)."""

from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from rose.errors import ConfigurationError
from rose.validation import describe


class QueueOptions(TypedDict, total=False):
    """The fields of `QueueSettings` as keyword arguments, for type checkers and editors."""

    redis_url: str | SecretStr
    queue: str
    partitions: int
    result_ttl_s: int
    max_queued_jobs: int | None
    max_queued_tokens: int | None
    max_queued_bytes: int | None
    redis_timeout_s: float
    redis_retries: int


class QueueSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROSE_", extra="forbid", frozen=True)

    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="redis://, rediss:// (TLS), unix://, redis+cluster:// or redis+sentinel:// "
        "URL; may hold user and password",
    )
    queue: str = Field(default="default", description="queue name; one queue serves one model")
    partitions: int = Field(
        default=1, ge=1, le=1024, description="partitions of the queue; the same everywhere"
    )
    result_ttl_s: int = Field(
        default=3600,
        ge=1,
        description="how long a finished job's tokens, state and idempotency key are kept",
    )
    max_queued_jobs: int | None = Field(
        default=None,
        ge=1,
        description="submit refuses above this many unfinished jobs of a partition; workers set "
        "the queue's limit (100,000 if not given), a producer may set a lower one",
    )
    max_queued_tokens: int | None = Field(
        default=None, ge=1, description="the same in estimated tokens (prompt and output)"
    )
    max_queued_bytes: int | None = Field(
        default=None,
        ge=1,
        description="the same in bytes of Redis' memory (1 GiB if workers are not given one)",
    )
    redis_timeout_s: float = Field(
        default=5.0, gt=0, description="longest wait for a connection or a reply"
    )
    redis_retries: int = Field(
        default=5, ge=0, description="repeats of a call whose connection failed, with backoff"
    )

    if not TYPE_CHECKING:  # a type checker knows the fields as arguments

        def __init__(self, **given: Any) -> None:
            """Raises: ConfigurationError: names every wrong setting in one line."""
            try:
                super().__init__(**given)
            except ValidationError as error:
                known = tuple(type(self).model_fields)
                raise ConfigurationError(describe(error, whole="settings", known=known)) from None

    @property
    def redis_user(self) -> str:
        """The user that the URL names; "" if it names none."""
        parts = urlsplit(self.redis_url.get_secret_value())
        named = parse_qs(parts.query).get("username")
        return named[0] if named else unquote(parts.username or "")
