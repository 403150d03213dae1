"""What chat and plain completions answer with: choices, streamed or whole."""
