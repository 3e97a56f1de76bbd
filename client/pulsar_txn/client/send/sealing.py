"""From a complete batch to what leaves: its SEND, or those of a large message's chunks, and the largest size."""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.errors import InvalidConfiguration, MessageTooLarge, PulsarError
from pulsar_txn.client.schema.crypto import Encryptor
from pulsar_txn.client.send.batching import EntryFactory
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.client.state.outgoing import Batch, row_payload
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import MAX_MESSAGE_SIZE
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.lone import LoneSends

ENTRY_OVERHEAD: Final = 10_000
"""Bytes that metadata may add to a message of the largest size."""

LONE_BYTES: Final = 32 * 1024
"""A payload up to this size is copied after its command, so that one buffer leaves; for a larger one that costs more."""


class Sealer:
    """Encoder of one producer's batches, which have their sequence ids already."""

    def __init__(self, producer_id: int, options: ProducerOptions, encryptor: Encryptor | None) -> None:
        self.max_message_size = MAX_MESSAGE_SIZE
        self._producer_id = producer_id
        self._options = options
        self._encryptor = encryptor
        self._entries = EntryFactory(options.producer_name or "", int(options.compression), b"", encryptor)
        self._lone: LoneSends | None = None
        self._lone_bytes = 0

    def opened(self, producer_name: str, schema_version: bytes, max_message_size: int) -> None:
        """Take over what the broker said when it made the producer."""
        options = self._options
        self._entries = EntryFactory(producer_name, int(options.compression), schema_version, self._encryptor)
        self.max_message_size = max_message_size
        if not (options.compression or options.chunking or self._encryptor):
            self._lone = LoneSends(self._producer_id, producer_name, schema_version)
            self._lone_bytes = min(max_message_size, LONE_BYTES)

    def lone(self, batch: Batch, wall_ms: int) -> bytes | None:
        """The SEND of one message that is nothing but its payload; None for others."""
        rows, lone = batch.rows, self._lone
        if lone is None or len(rows) != 1 or batch.alone is not None:
            return None
        payload = rows[0]
        if not isinstance(payload, bytes) or len(payload) > self._lone_bytes:
            return None
        unit = batch.group.unit
        return lone.encode(batch.sequence_id, wall_ms, payload, None if unit is None else unit.txn_id)

    def sends(self, batch: Batch, wall_ms: int) -> list[list[bytes]]:
        """The buffers of one SEND, or of those of all chunks of a large message.

        Raises MessageTooLarge, CryptoError, and InvalidConfiguration for what cannot be encoded.
        """
        try:
            if (frame := self.lone(batch, wall_ms)) is not None:
                return [[frame]]
            unit = batch.group.unit
            txn_id = None if unit is None else unit.txn_id
            entries = self._entries_of(batch, txn_id, wall_ms)
            return [self._send(batch, txn_id, entry, is_chunk=len(entries) > 1) for entry in entries]
        except PulsarError:
            raise
        except Exception as error:
            text = f"a message cannot be encoded: {error!r}"
            raise InvalidConfiguration(text, hint="every message of its batch fails with it") from error

    def _send(self, batch: Batch, txn_id: TxnId | None, entry: bytes, *, is_chunk: bool) -> list[bytes]:
        return hot.encode_send(
            self._producer_id,
            batch.sequence_id,
            batch.messages,
            entry,
            txn=txn_id,
            highest_sequence_id=batch.highest if batch.highest != batch.sequence_id else None,
            is_chunk=is_chunk,
        )

    def _entries_of(self, batch: Batch, txn_id: TxnId | None, wall_ms: int) -> list[bytes]:
        options, rows = self._options, batch.rows
        limit = min(options.chunk_max_bytes or self.max_message_size, self.max_message_size)
        if not options.chunking or len(rows) != 1 or len(row_payload(rows[0])) < limit // 2:
            return [self._entry(batch, txn_id, wall_ms)]
        return self._entries.chunks(rows[0], batch.sequence_id, wall_ms, txn_id, batch.alone, limit)

    def _entry(self, batch: Batch, txn_id: TxnId | None, wall_ms: int) -> bytes:
        rows, first, last = batch.rows, batch.sequence_id, batch.highest
        if batch.encoded is not None:
            entry = self._entries.encoded(batch.encoded, first, last, wall_ms, txn_id)
        elif len(rows) == 1:
            entry = self._entries.single(rows[0], first, wall_ms, txn_id, batch.alone)
        else:
            entry = self._entries.batch(rows, first, last, wall_ms, txn_id, batch.group.name)
        if len(entry) > self.max_message_size + ENTRY_OVERHEAD:
            raise MessageTooLarge(f"{len(entry)} bytes; the broker takes {self.max_message_size}", hint="split the message")
        return entry
