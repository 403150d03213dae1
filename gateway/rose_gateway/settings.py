"""What the gateway can set, by flag or by environment (`ROSE_GATEWAY_...`)."""

import json
import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from rose.protocol import Priority
from rose_producer.settings import ProducerSettings

_LEAST_SEAL_KEY = 32


class KeyLimits(BaseModel):
    """What a key may do; None: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    reads_per_minute: int | None = Field(default=None, ge=1)
    """requests that make nothing"""
    max_jobs: int | None = Field(default=None, ge=1)
    """queued and running"""
    max_stored_bytes: int | None = Field(default=None, ge=1)
    """of its files, those that its batches write among them"""
    max_files: int | None = Field(default=None, ge=1)
    max_unfinished_batches: int | None = Field(default=None, ge=1)
    models: tuple[str, ...] | None = None
    max_priority: Priority = Priority.HIGH


class GatewaySettings(ProducerSettings):
    """Its own fields are set by `ROSE_GATEWAY_...`, those of every client by `ROSE_...`."""

    queues: str | None = Field(
        default=None,
        description="queues to serve, names separated by commas; the setting queue if not given",
    )
    aliases: str = Field(
        default="{}",
        description="more names for models: a JSON object of name to model or queue; "
        '{"claude-*": "my-model"} maps all names that begin so',
    )
    host: str = Field(
        default="127.0.0.1",
        description="address; beyond loopback the gateway starts only if there are API keys",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="its port; 0 for a free one")
    open: bool = Field(
        default=False,
        description="serve beyond loopback without API keys, to everybody who can reach it",
    )
    allowed_hosts: str = Field(
        default="",
        description="names by which the gateway is asked, separated by commas, beside loopback's, "
        "its host and the address at which a connection arrives; *.example.com for all names below "
        "one, * for any. Others get a 403",
    )
    allowed_origins: str = Field(
        default="",
        description="origins of web pages that may use the gateway and read its answers (CORS), "
        "such as "
        "https://chat.example.com, separated by commas, beside its own; * for any. "
        "Others get a 403",
    )
    key_limits: str = Field(
        default="{}",
        description="limits of API keys that have none of their own, and of all callers together "
        "where there are no keys: a JSON object, such as "
        '{"requests_per_minute": 600, "reads_per_minute": 6000, "max_stored_bytes": 10000000000}',
    )
    without_effect: Literal["warn", "refuse"] = Field(
        default="warn",
        description="what a request asks for and its model cannot do, such as an effort: warn "
        "serves it and says so in the answer, refuse is a 400",
    )
    seal_keys: SecretStr | None = Field(
        default=None,
        description="keys that seal the thoughts which clients keep, of 32 characters or more, "
        "separated by commas: the first seals, all open. If not given, one is drawn and kept in "
        "Redis",
    )
    page: bool = Field(default=True, description="serve the chat page at /")
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="longest body of a request"
    )
    max_bodies_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024,
        description="bytes of all request bodies in memory; above it requests get a 503. What is "
        "read from them may take as much again",
    )
    max_unread_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024,
        description="bytes of answers in memory whose clients do not keep up; above it the client "
        "that has longest read nothing is disconnected",
    )
    max_nesting: int = Field(
        default=100, ge=1, le=500, description="deepest nesting of a request's JSON"
    )
    storage: str | None = Field(
        default=None,
        description="where files are stored: a folder or an fsspec URL such as s3://bucket/prefix, "
        "shared by all gateways of a Redis (a folder in the user's data folder if not given)",
    )
    max_file_bytes: int = Field(
        default=200_000_000, ge=1, description="largest file that can be uploaded"
    )
    run_batches: bool = Field(
        default=True, description="run batches; false leaves them to other gateways"
    )
    max_batches: int = Field(
        default=4, ge=1, description="batches that this gateway runs at a time; others wait"
    )
    batch_window: int = Field(
        default=128,
        ge=1,
        le=10_000,
        description="lines of one batch that are in the queue at a time",
    )
    batch_lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="a batch is taken over after this silence of its gateway",
    )
    max_batch_lines: int = Field(
        default=50_000, ge=1, le=1_000_000, description="maximum number of lines of a batch"
    )
    batch_ttl_s: int = Field(
        default=30 * 86_400, ge=60, description="how long a batch can be found after its end"
    )
    send_webhooks: bool = Field(
        default=True, description="deliver webhooks; false leaves them to other gateways"
    )
    webhook_networks: str = Field(
        default="",
        description="networks beside the public internet to which webhooks may be sent, such as "
        "10.0.0.0/8, separated by commas. http:// is for these only",
    )
    webhook_timeout_s: float = Field(
        default=15.0, gt=0, le=600, description="a webhook's receiver must answer within this time"
    )
    webhook_pause_s: float = Field(
        default=5.0,
        gt=0,
        description="a webhook that was not received is sent again after this time; each further "
        "pause is three times as long",
    )
    webhook_max_pause_s: float = Field(
        default=12 * 3600.0, gt=0, description="longest pause between two attempts"
    )
    webhook_give_up_s: float = Field(
        default=72 * 3600.0,
        ge=0,
        description="a webhook that has failed for this time is dead: see `rose webhooks dead`",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="open connections; another one closes the longest idle one",
    )
    header_timeout_s: float = Field(
        default=10.0, gt=0, description="a request's headers must arrive within this time"
    )
    body_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="longest silence within a request's body; the whole body may take ten times as "
        "long, and a second more for each 100 kB",
    )
    keep_alive_s: float = Field(
        default=75.0,
        gt=0,
        description="how long an idle connection is kept open for the next request",
    )
    heartbeat_s: float = Field(
        default=15.0,
        gt=0,
        description="interval of comments in a silent stream, and how long a long poll waits",
    )
    write_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="a client that reads nothing of its stream for this time plus a heartbeat is "
        "disconnected",
    )
    grace_s: float = Field(
        default=30.0,
        ge=0,
        description="at SIGTERM: time for open streams to end before they are closed",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error; info has a line a request"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="text, or json: a JSON object a line"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's names
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)

    @field_validator("aliases")
    @classmethod
    def _aliases_are_names(cls, aliases: str) -> str:
        try:
            names = json.loads(aliases)
        except ValueError as error:
            raise ValueError(f"must be a JSON object: {error}") from None
        if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
            raise ValueError('must be a JSON object of names, as {"gpt-4o": "my-model"}')
        return aliases

    @field_validator("seal_keys")
    @classmethod
    def _seal_keys_are_long(cls, keys: SecretStr | None) -> SecretStr | None:
        given = [] if keys is None else keys.get_secret_value().split(",")
        if any(len(key.strip()) < _LEAST_SEAL_KEY for key in given):
            raise ValueError(f"each key must have at least {_LEAST_SEAL_KEY} characters")
        return keys

    @field_validator("webhook_networks")
    @classmethod
    def _webhook_networks_are_networks(cls, networks: str) -> str:
        networks_of(networks)
        return networks

    @field_validator("key_limits")
    @classmethod
    def _key_limits_are_known(cls, key_limits: str) -> str:
        KeyLimits.model_validate_json(key_limits)
        return key_limits

    @property
    def default_limits(self) -> KeyLimits:
        """Of keys that have none of their own."""
        return KeyLimits.model_validate_json(self.key_limits)

    @property
    def queue_names(self) -> tuple[str, ...]:
        names = (name.strip() for name in (self.queues or self.queue).split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def model_aliases(self) -> dict[str, str]:
        names: dict[str, str] = json.loads(self.aliases)
        return names

    def of_queue(self, queue: str) -> ProducerSettings:
        """What a client of this queue is made with."""
        return self.model_copy(update={"queue": queue})


def networks_of(setting: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Raises: ValueError"""
    return tuple(ip_network(name.strip()) for name in setting.split(",") if name.strip())


def variable(name: str) -> str:
    """The variable of a field."""
    prefix = "ROSE_" if name in ProducerSettings.model_fields else "ROSE_GATEWAY_"
    return prefix + name.upper()


class _Variables(PydanticBaseSettingsSource):
    """Reads each field from its variable."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return self._environment.get(variable(field_name)), field_name, False

    def __call__(self) -> dict[str, Any]:
        self._environment = {name.upper(): value for name, value in os.environ.items()}
        values = {
            name: self.get_field_value(field, name)[0]
            for name, field in self.settings_cls.model_fields.items()
        }
        return {name: value for name, value in values.items() if value is not None}
