"""What the gateway can set, by flag or by environment (`ROSE_GATEWAY_...`)."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from rose_producer.settings import ProducerSettings


class GatewaySettings(ProducerSettings):
    """Its own fields are set by `ROSE_GATEWAY_...`, those of every client by `ROSE_...`."""

    queues: str | None = Field(
        default=None,
        description="queues to serve, names separated by commas; the setting queue if not given",
    )
    aliases: str = Field(
        default="{}",
        description="more names for models: a JSON object of name to model or queue",
    )
    host: str = Field(
        default="127.0.0.1",
        description="address; beyond loopback the gateway starts only where there are API keys",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="its port; 0 for a free one")
    open: bool = Field(
        default=False,
        description="serve without API keys beyond loopback: everybody who reaches it may use it",
    )
    page: bool = Field(
        default=True, description="serve the page at /, where a person talks to the model"
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="longest body of a request"
    )
    max_bodies_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024,
        description="bytes of all bodies held at one time; more are refused for the moment",
    )
    max_nesting: int = Field(
        default=100, ge=1, le=500, description="deepest nesting of a request's JSON"
    )
    storage: str | None = Field(
        default=None,
        description="where files are kept: a folder, or an fsspec URL such as s3://bucket/prefix; "
        "all gateways of a Redis must share it (a folder of the user's data if not given)",
    )
    max_file_bytes: int = Field(
        default=200_000_000, ge=1, description="largest file that can be uploaded"
    )
    run_batches: bool = Field(
        default=True, description="run batches; false leaves them to other gateways"
    )
    max_batches: int = Field(
        default=4, ge=1, description="batches that this gateway runs at one time; others wait"
    )
    batch_window: int = Field(
        default=128,
        ge=1,
        le=10_000,
        description="lines of one batch that are in the queue at one time",
    )
    batch_lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="a batch is taken over after this long without a word from its gateway",
    )
    max_batch_lines: int = Field(
        default=50_000, ge=1, le=1_000_000, description="most lines of a batch's input"
    )
    batch_ttl_s: int = Field(
        default=30 * 86_400, ge=60, description="how long a batch is known after its end"
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        description="open connections; one more closes the idle one that has been silent longest",
    )
    header_timeout_s: float = Field(
        default=10.0, gt=0, description="a request's headers must come within this time"
    )
    body_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="longest silence within a request's body; the whole has ten times as long, and "
        "a second more for each 100 kB",
    )
    keep_alive_s: float = Field(
        default=75.0, gt=0, description="how long an idle connection is kept for a next request"
    )
    heartbeat_s: float = Field(
        default=15.0, gt=0, description="a silent stream carries a comment this often"
    )
    write_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="a client that takes nothing of its stream for so long, and a heartbeat, is "
        "hung up on",
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="at SIGTERM: time for open streams before they are closed"
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
