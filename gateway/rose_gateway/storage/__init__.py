"""What the gateway keeps of files and batches, in Redis and in a folder or an object store."""
