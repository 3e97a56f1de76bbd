"""Logs in topics of a Pulsar cluster: the ledger provider `topic`. ADR 36 says what stands in a topic, and why."""
