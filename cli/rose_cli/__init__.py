"""The sub-commands of `rose` that are more than a thin call, and what all of them share."""
