"""Chaos over HTTP: gateways behind one address, and clients that resume."""
