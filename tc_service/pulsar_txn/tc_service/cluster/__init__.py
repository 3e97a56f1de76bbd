"""The brokers of a Pulsar cluster, as an external coordinator uses them: lookups, and ends of transactions."""
