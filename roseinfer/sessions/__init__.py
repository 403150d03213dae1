"""Requests on their way through the engine, and their next tokens."""
