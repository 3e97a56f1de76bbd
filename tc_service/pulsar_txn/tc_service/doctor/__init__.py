"""`pulsar-txn doctor`: finds what transactions hold back in a cluster, says why, and cures it when told to."""
