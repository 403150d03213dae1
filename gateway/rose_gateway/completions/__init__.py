"""Completions: text after text, as OpenAI's older API has it."""
