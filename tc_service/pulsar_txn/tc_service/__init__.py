"""The transaction coordinator beside Pulsar clusters, and tools for the transactions of a cluster.

The coordinator decides and logs. Producers and consumers talk to the brokers of their clusters; this room tells those brokers
the outcome of each transaction (`cluster`).

The room imports `tc`, `ledger`, `wire`, the public client, and one entry each of the broker and of the client
(`pulsar_txn.broker.serving`, `pulsar_txn.client.inside`). It must never know a transaction buffer, a pending
acknowledgement or Spark.
"""
