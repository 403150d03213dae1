"""API keys of a gateway, made as operators make them."""

import json
from typing import Any

from tests.support.command import run_rose
from tests.support.gateway import Deployment


def create_key(deployment: Deployment, *options: str) -> dict[str, Any]:
    """What `rose keys create` prints; `secret` is the key itself."""
    made = run_rose(
        "keys", "create", "test", "--json", "--redis-url", deployment.redis_url, *options
    )
    facts: dict[str, Any] = json.loads(made.stdout)
    return facts


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}
