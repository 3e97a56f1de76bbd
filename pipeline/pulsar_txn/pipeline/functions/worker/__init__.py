"""The functions worker: runs the functions of a broker, each instance in a process of its own."""
