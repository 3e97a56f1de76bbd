"""Side of the service over HTTP: health, metrics, its transactions, their ends and timelines."""
