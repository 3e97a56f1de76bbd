"""`pulsar.functions` under its official layout; what runs functions is `pulsar_txn.client.functions`."""
