"""What all parts share, without torch: errors, settings, the protocol, the transport."""
