"""The head under which a host stores a machine's snapshot: what it covers of each log, and the host's own part.

A log's snapshot names one position. A machine with several logs needs one of each, and a topic keeps its deduplication
state beside its buffer's: both are in this envelope. Stored are first the parts of the envelope, then the machine's slices,
each a part of its own. Version 1 was one part: the envelope, and the machine's state in one piece after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import attrs

from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

from .machine import SLICE_BYTES

_HEAD = struct.Struct(">4sBHI")  # magic, version, number of logs, length of the host's part
_PLACE = struct.Struct(">Hqq")  # length of the name, ledger, entry
_MAGIC = b"PTSN"
_VERSION = 2


@attrs.frozen
class Envelope:
    """`covers`: by log name, the last entry whose effects the machine's slices hold; `extra`: what the host remembers."""

    covers: Mapping[str, Position]
    extra: bytes

    def parts(self) -> Iterator[bytes]:
        """The parts to store in front of the machine's slices."""
        fields = [_HEAD.pack(_MAGIC, _VERSION, len(self.covers), len(self.extra))]
        for name, (ledger_id, entry_id) in self.covers.items():
            encoded = name.encode()
            fields += [_PLACE.pack(len(encoded), ledger_id, entry_id), encoded]
        data = b"".join([*fields, self.extra])
        return (data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))

    @classmethod
    def read(cls, parts: Sequence[bytes]) -> tuple[Envelope, tuple[bytes, ...]]:
        """The envelope and the machine's slices. Raises WireError for anything else, a newer version included."""
        first = parts[0] if parts else b""
        try:
            magic, version, logs, extra_size = _HEAD.unpack_from(first)
            if magic != _MAGIC or not 1 <= version <= _VERSION:
                raise WireError(f"a snapshot begins with {_MAGIC!r} and version 1 to {_VERSION}, not {magic!r} and {version}")
            at = _HEAD.size
            covers: dict[str, Position] = {}
            for _ in range(logs):
                size, ledger_id, entry_id = _PLACE.unpack_from(first, at)
                at += _PLACE.size
                covers[first[at : at + size].decode()] = (ledger_id, entry_id)
                at += size
        except (struct.error, UnicodeDecodeError) as error:
            raise WireError(f"a snapshot that ends too early: {error}") from error
        size = at + extra_size
        data, slices = bytes(first[:size]), tuple(parts[1:])
        if version == 1:
            slices = (b"".join(parts)[size:],)
        while len(data) < size and slices:
            data, slices = data + slices[0], slices[1:]
        if len(data) != size:
            raise WireError(f"a snapshot whose envelope has {len(data)} bytes, not {size}")
        return cls(covers, data[at:]), slices
