"""Is anything lost, doubled or reordered, whatever dies? See docs/reliability.md."""
