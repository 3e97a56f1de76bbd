"""Storage of the host in memory: stand-ins for entries, and disks that survive crashes."""

from __future__ import annotations

import json
import zlib

import attrs

from pulsar_txn.wire.ids import EntryHeader, Position, TxnId


def make_entry(header: EntryHeader, payload: bytes) -> bytes:
    """A stand-in for an entry, which begins as entries do: with the magic and a checksum."""
    fields = attrs.astuple(header, recurse=False)[:7]  # no buffer looks at its hints
    return b"\x0e\x01" + checksum_of(payload).to_bytes(4) + json.dumps(fields).encode() + b"\n" + payload


def read_entry(data: bytes) -> tuple[EntryHeader, bytes]:
    """The inverse of `make_entry`."""
    head, _, payload = data[6:].partition(b"\n")
    name, sequence_id, highest, time_ms, txn_id, marker_type, count = json.loads(head)
    txn = None if txn_id is None else TxnId(*txn_id)
    return EntryHeader(name, sequence_id, highest, time_ms, txn, marker_type, count, checksum=checksum_of(payload)), payload


def checksum_of(payload: bytes) -> int:
    """A checksum as the entry's header has one."""
    return zlib.crc32(payload) or 1


@attrs.frozen
class StoredSnapshot:
    """A snapshot that covers the buffer's main log up to `covers`."""

    covers: Position
    parts: tuple[bytes, ...]


@attrs.frozen
class Disk:
    """Disk that survives a crash: entries of all logs in the order of the journal, and the newest snapshot."""

    journal: tuple[tuple[str, Position, bytes], ...] = ()
    snapshot: StoredSnapshot | None = None
    generation: int = 0
