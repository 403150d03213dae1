"""Bytes that nobody meant: a million of them through a real worker."""
