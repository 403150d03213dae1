"""What the engine knows of the machine: copies to and from a device, memory."""
