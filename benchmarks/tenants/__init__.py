"""What tenants cost and what they get: `python -m benchmarks.tenants`."""
