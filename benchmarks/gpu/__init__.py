"""The engine on a GPU: beside its peers, beside what the device can do, and in its service."""
