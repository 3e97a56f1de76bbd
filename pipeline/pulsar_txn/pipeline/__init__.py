"""Consume, process, produce for programs larger than one loop, in two rooms.

`functions` runs functions in the style of Pulsar Functions, with a guarantee for each. `spark` is a source and a sink for
PySpark, whose micro-batches become visible in one transaction.

The room knows the client, and `spark` alone knows Spark. It must never know the broker, a ledger or the bytes of the wire:
it sees Pulsar through the client.
"""
