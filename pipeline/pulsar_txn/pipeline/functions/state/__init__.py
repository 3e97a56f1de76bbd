"""The state of a function: counters and values by key, kept in a topic and written in the transaction of the output."""
