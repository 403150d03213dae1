"""Files: uploaded in parts, kept, swept."""
