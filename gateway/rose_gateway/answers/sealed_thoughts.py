"""Thoughts that come back sealed, as they were given away."""

from rose_gateway.access.sealing import Seal, SealBroken
from rose_gateway.requests.bad_request import BadRequest


def opened_thought(sealed: str, seal: Seal, param: str) -> str:
    """Raises: BadRequest: it was not sealed here, for this caller."""
    try:
        return seal.opened(sealed)
    except SealBroken:
        raise BadRequest(
            f"{param}: this thought was not sealed here for this API key, or it was changed: send "
            "it as it came, or leave it out",
            param,
            code="invalid_seal",
        ) from None
