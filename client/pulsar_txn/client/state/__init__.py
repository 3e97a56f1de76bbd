"""Machines of the client without IO, clock or futures: events in, effects out. Shells around them hold sockets and timers."""
