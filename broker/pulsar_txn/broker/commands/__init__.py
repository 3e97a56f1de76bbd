"""The commands of the binary protocol: each is a function of a connection and a request."""
