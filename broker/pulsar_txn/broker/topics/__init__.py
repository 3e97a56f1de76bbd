"""Topics and subscriptions: what is published, read, acknowledged, retained and compacted."""
