"""The Pulsar binary protocol: ids, frames, commands, batches, checksums, error codes.

It knows bytes and nothing else. It must never know a socket, a clock, a file or an event loop:
everything here is a function of its arguments, so broker, client and tests share one truth about
what is on the wire. `ids` and `errors` are the only modules that the machine rooms may use.
"""
