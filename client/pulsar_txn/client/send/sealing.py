"""From a complete batch to what leaves: its sequence ids, its SEND or those of a large message's chunks, the largest size."""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.errors import InvalidConfiguration, MessageTooLarge, PulsarError
from pulsar_txn.client.schema.crypto import Encryptor
from pulsar_txn.client.send.batching import EntryFactory, Pending, row_payload, row_sequence_id
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import MAX_MESSAGE_SIZE
from pulsar_txn.wire.lone import LoneSends

ENTRY_OVERHEAD: Final = 10_000
"""Bytes that metadata may add to a message of the largest size."""

LONE_BYTES: Final = 32 * 1024
"""A payload up to this size is copied after its command, so that one buffer leaves; for a larger one that costs more."""


class Sealer:
    """Seals the batches of one producer, in the order in which they leave."""

    def __init__(self, producer_id: int, options: ProducerOptions, encryptor: Encryptor | None) -> None:
        self.next_sequence_id: int | None = options.initial_sequence_id
        """None until the broker has said which was the last."""
        self.max_message_size = MAX_MESSAGE_SIZE
        self._producer_id = producer_id
        self._options = options
        self._encryptor = encryptor
        self._entries = EntryFactory(options.producer_name or "", int(options.compression), b"", encryptor)
        self._lone: LoneSends | None = None
        self._lone_bytes = 0

    def opened(self, producer_name: str, schema_version: bytes, max_message_size: int) -> None:
        """What the broker said when it made the producer."""
        options = self._options
        self._entries = EntryFactory(producer_name, int(options.compression), schema_version, self._encryptor)
        self.max_message_size = max_message_size
        if not (options.compression or options.chunking or self._encryptor):
            self._lone = LoneSends(self._producer_id, producer_name, schema_version)
            self._lone_bytes = min(max_message_size, LONE_BYTES)

    def lone(self, pending: Pending, now_ms: int) -> bytes | None:
        """The SEND of one message that is nothing but its payload; `pending` gets its sequence id. None for others."""
        rows, lone = pending.rows, self._lone
        if lone is None or len(rows) != 1 or pending.alone is not None:
            return None
        payload = rows[0]
        if not isinstance(payload, bytes) or len(payload) > self._lone_bytes:
            return None
        sequence_id = self.next_sequence_id or 0
        frame = lone.encode(sequence_id, now_ms, payload, pending.builder.txn_id)
        pending.sequence_id = pending.highest = sequence_id
        self.next_sequence_id = sequence_id + 1
        return frame

    def sends(self, pending: Pending, now_ms: int) -> list[list[bytes]]:
        """The buffers of one SEND, or of those of all chunks of a large message; `pending` gets its sequence ids.

        Raises MessageTooLarge, CryptoError, and InvalidConfiguration for what cannot be encoded; no sequence id is used then.
        """
        before = self.next_sequence_id
        try:
            if (frame := self.lone(pending, now_ms)) is not None:
                return [[frame]]
            entries = self._sealed(pending, now_ms)
            return [self._send(pending, entry, is_chunk=len(entries) > 1) for entry in entries]
        except PulsarError:
            self.next_sequence_id = before
            raise
        except Exception as error:
            self.next_sequence_id = before
            text = f"a message cannot be encoded: {error!r}"
            raise InvalidConfiguration(text, hint="every message of its batch fails with it") from error

    def _send(self, pending: Pending, entry: bytes, *, is_chunk: bool) -> list[bytes]:
        return hot.encode_send(
            self._producer_id,
            pending.sequence_id,
            pending.messages,
            entry,
            txn=pending.builder.txn_id,
            highest_sequence_id=pending.highest if pending.highest != pending.sequence_id else None,
            is_chunk=is_chunk,
        )

    def _sealed(self, pending: Pending, now_ms: int) -> list[bytes]:
        options, rows = self._options, pending.rows
        self._number(pending)
        limit = min(options.chunk_max_bytes or self.max_message_size, self.max_message_size)
        if not options.chunking or len(rows) != 1 or len(row_payload(rows[0])) < limit // 2:
            return [self._entry(pending, now_ms)]
        return self._entries.chunks(rows[0], pending.sequence_id, now_ms, pending.builder.txn_id, pending.alone, limit)

    def _entry(self, pending: Pending, now_ms: int) -> bytes:
        builder, rows = pending.builder, pending.rows
        if pending.encoded is not None:
            entry = self._entries.encoded(pending.encoded, pending.sequence_id, pending.highest, now_ms, builder.txn_id)
        elif len(rows) == 1:
            entry = self._entries.single(rows[0], pending.sequence_id, now_ms, builder.txn_id, pending.alone)
        else:
            entry = self._entries.batch(rows, pending.sequence_id, pending.highest, now_ms, builder.txn_id, builder.group)
        if len(entry) > self.max_message_size + ENTRY_OVERHEAD:
            raise MessageTooLarge(f"{len(entry)} bytes; the broker takes {self.max_message_size}", hint="split the message")
        return entry

    def _number(self, pending: Pending) -> None:
        """Sequence ids: the program's own where it gave them, else the next ones."""
        following, rows = self.next_sequence_id or 0, pending.rows
        given, given_last = (row_sequence_id(rows[0]), row_sequence_id(rows[-1])) if rows else (None, None)
        first = following if given is None else given
        last = first + pending.messages - 1 if given_last is None else given_last
        pending.sequence_id, pending.highest = first, max(first, last)
        self.next_sequence_id = max(following, pending.highest + 1)
