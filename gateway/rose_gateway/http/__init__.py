"""HTTP below the routes: connections, bodies, event streams, the request's context."""
