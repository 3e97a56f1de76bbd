"""Batches that a program encodes before, perhaps elsewhere, and sends as they are: `producer.send_encoded(batch)`.

    batch = encode_batch([row(b"one", key="k"), b"two"])
    await producer.send_encoded(batch)

A batch that was encoded can be pickled, so that other processes may do that part of the work.
"""

from pulsar_txn.client.send.batching import EncodedBatch, Row, encode_batch, pack_batch, row

__all__ = ["EncodedBatch", "Row", "encode_batch", "pack_batch", "row"]
