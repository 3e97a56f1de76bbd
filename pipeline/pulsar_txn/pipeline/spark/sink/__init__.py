"""The sink: tasks stage encoded rows, and the driver publishes a whole micro-batch in one transaction."""
