"""The bytes under which a host stores a machine's snapshot: what it covers of each log, the host's own part, the machine's.

A log's snapshot names one position. A machine with several logs needs one of each, and a topic keeps its deduplication
state beside its buffer's: both are in this envelope.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import attrs

from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

_HEAD = struct.Struct(">4sBHI")  # magic, version, number of logs, length of the host's part
_PLACE = struct.Struct(">Hqq")  # length of the name, ledger, entry
_MAGIC = b"PTSN"
_VERSION = 1


@attrs.frozen
class Envelope:
    """`covers`: by log name, the last entry whose effects are in `machine`; `extra`: what the host itself remembers."""

    covers: Mapping[str, Position]
    extra: bytes
    machine: bytes

    def pack(self) -> bytes:
        """The bytes to store."""
        parts = [_HEAD.pack(_MAGIC, _VERSION, len(self.covers), len(self.extra))]
        for name, (ledger_id, entry_id) in self.covers.items():
            encoded = name.encode()
            parts += [_PLACE.pack(len(encoded), ledger_id, entry_id), encoded]
        return b"".join([*parts, self.extra, self.machine])

    @classmethod
    def unpack(cls, data: bytes) -> Envelope:
        """Read what `pack` wrote. Raises WireError for anything else, a newer version included."""
        try:
            magic, version, logs, extra_size = _HEAD.unpack_from(data)
            if magic != _MAGIC or version != _VERSION:
                raise WireError(f"a snapshot begins with {_MAGIC!r} and version {_VERSION}, not {magic!r} and {version}")
            at = _HEAD.size
            covers: dict[str, Position] = {}
            for _ in range(logs):
                size, ledger_id, entry_id = _PLACE.unpack_from(data, at)
                at += _PLACE.size
                covers[data[at : at + size].decode()] = (ledger_id, entry_id)
                at += size
        except (struct.error, UnicodeDecodeError) as error:
            raise WireError(f"a snapshot that ends too early: {error}") from error
        if at + extra_size > len(data):
            raise WireError("a snapshot that ends too early")
        return cls(covers, data[at : at + extra_size], data[at + extra_size :])
