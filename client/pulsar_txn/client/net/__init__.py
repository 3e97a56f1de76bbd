"""The room of connections: sockets, requests, the pool, lookups, authentication, clock and timers."""
