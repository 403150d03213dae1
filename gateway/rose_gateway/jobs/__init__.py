"""The jobs behind the requests: submitted, found, listed and shown."""
