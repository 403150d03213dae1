"""The HTTP gateway beside the Python client."""
