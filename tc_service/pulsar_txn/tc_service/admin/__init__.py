"""What the service says of itself over HTTP: health, metrics, its transactions, their ends and timelines."""
