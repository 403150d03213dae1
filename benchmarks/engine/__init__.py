"""The engine by itself and in its service, beside its peers."""
