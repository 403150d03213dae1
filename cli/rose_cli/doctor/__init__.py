"""`rose doctor`: what it checks, on the Redis server and on this machine."""
