"""Chaos through the HTTP door: gateways behind one address, and clients that resume."""
