"""Every connection to Redis: how it is opened, repeated, and listened to."""
