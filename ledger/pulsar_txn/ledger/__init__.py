"""The append-only log of every machine, its providers, and the metadata store beside them.

It knows bytes, positions and durability. It must never know what an entry means: no transaction, no
topic, no protobuf command. `protocols` and `machine` are the doors that other rooms may use; providers
(`memory`, `journal`, later `bookkeeper` and `pulsar`) are chosen by configuration and all pass
`pulsar_txn.ledger.testing`.
"""
