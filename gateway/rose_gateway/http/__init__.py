"""HTTP below the routes: connections, bodies, event streams, the log of requests."""
