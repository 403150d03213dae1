"""Chaos for webhooks: gateways die, and the receiver fails, hangs and restarts."""
