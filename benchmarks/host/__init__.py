"""What the host adds to the steps of a device that only sleeps: `python -m benchmarks.host`."""
