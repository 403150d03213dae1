"""Files: what Redis knows of them, where their bytes lie, and /v1/files."""
