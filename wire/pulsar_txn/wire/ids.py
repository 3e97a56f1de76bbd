"""Names of things: transactions, positions, messages, participants; and what an entry says of itself.

On the path of every message plain tuples and ints are used: a `Position` *is* a tuple, so it compares,
hashes and sorts in C. Numbers that Java holds as signed 64-bit travel unsigned on the wire; `signed64`
and `unsigned64` convert at the edge, nothing inside ever sees the unsigned form.
"""

from __future__ import annotations

import enum
import re
import struct
from typing import Final, NamedTuple, TypeAlias

import attrs

from .values import value

Position: TypeAlias = tuple[int, int]
"""`(ledger_id, entry_id)`, ordered as Pulsar orders positions; `entry_id` -1 is "before the first entry"."""

AckKey: TypeAlias = tuple[int, int]
"""`(acker, number)`: who acknowledges, and the number of the acknowledgement. One that is sent again has the same key."""

EARLIEST: Final[Position] = (-1, -1)
"""Before every position; the published max_read_position of a buffer that has not recovered yet."""

LATEST: Final[Position] = (2**63 - 1, 2**63 - 1)
"""Behind every position, as Pulsar's MessageId.latest."""


class TxnId(NamedTuple):
    """A transaction: `most` is the coordinator's id, `least` its sequence number there. `str()` is `(most,least)`."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"

    @classmethod
    def parse(cls, text: str) -> TxnId:
        """Read `(most,least)` or `most,least` or `most:least`; ValueError says what is expected."""
        match = re.fullmatch(r"(\()?\s*([0-9]{1,19})\s*[,:]\s*([0-9]{1,19})\s*(?(1)\))", text)
        txn_id = None if match is None else cls(int(match[2]), int(match[3]))
        if txn_id is None or max(txn_id) >= 1 << 63:
            raise ValueError(f"not a transaction id: {text!r}; write it as (coordinator,sequence), for example (3,42)")
        return txn_id


LANE_BIT: Final = 1 << 62
"""In `most`: the id was given by a coordinator beside a cluster, whose `most` names a lane (see `coordinator_of`)."""

GROUP_SHIFT: Final = 48


def coordinator_of(most: int) -> int:
    """The coordinator that gave a transaction its `most`: the number itself, or bits 48 to 61 of a lane."""
    return (most ^ LANE_BIT) >> GROUP_SHIFT if most & LANE_BIT else most


class MessageId(NamedTuple):
    """The place of one message: entry, partition (-1: not partitioned), index in its batch (-1: not batched)."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0

    @property
    def position(self) -> Position:
        """The entry that holds the message."""
        return (self.ledger_id, self.entry_id)

    def __str__(self) -> str:
        parts = [self.ledger_id, self.entry_id, self.partition]
        return ":".join(map(str, [*parts, self.batch_index] if self.batch_index >= 0 else parts))


class TxnAction(enum.IntEnum):
    """Action of END_TXN (protocol enum TxnAction)."""

    COMMIT = 0
    ABORT = 1


class TxnStatus(enum.IntEnum):
    """Status of a transaction in its coordinator (PulsarTransactionMetadata.proto).

    PREPARED and HELD are ours (`docs/adr/0043`, `0051`).
    """

    OPEN = 0
    COMMITTING = 1
    COMMITTED = 2
    ABORTING = 3
    ABORTED = 4
    PREPARED = 100
    HELD = 101


class MarkerType(enum.IntEnum):
    """`marker_type` of server-internal entries (PulsarMarkers.proto); only the transaction markers are named."""

    TXN_COMMIT = 21
    TXN_ABORT = 22


@value
class Participant:
    """Participant of a transaction: a topic partition, or one subscription of it (`subscription` set)."""

    topic: str
    subscription: str | None = None


@value
class DispatchHints:
    """Wishes of an entry to the broker that hands it out.

    `deliver_at_ms`: not before this time. `chunk_of`: the uuid of the message that this entry is one of several chunks of,
    of which it is number `chunk_id` of `chunks`. None: it does not ask for that.
    """

    deliver_at_ms: int | None = None
    chunk_of: bytes | None = None
    chunk_id: int = 0
    chunks: int = 0


@value
class EntryHeader:
    """Header of a topic entry, decoded from its MessageMetadata by `wire.entries.read_header`.

    `marker_type` is None for data. `txn_id` is None outside transactions. `num_messages` counts the
    messages of a batch (`None`: the entry is one message, not a batch). `hints` is None for most entries. `checksum` is that of
    the entry's metadata and payload, for entries in transactions only; 0 when it has none. Equal headers may differ in it.
    """

    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    publish_time_ms: int
    txn_id: TxnId | None = None
    marker_type: int | None = None
    num_messages: int | None = None
    hints: DispatchHints | None = None
    checksum: int = attrs.field(default=0, eq=False)

    @property
    def is_marker(self) -> bool:
        """True for every server-internal entry, of transactions or not."""
        return self.marker_type is not None


def signed64(value: int) -> int:
    """The Java long that an unsigned wire value represents: 2**64-1 is -1."""
    return value - (1 << 64) if value >= 1 << 63 else value


def unsigned64(value: int) -> int:
    """The wire value of a Java long: -1 is 2**64-1."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


def ack_set_to_words(ack_set: int, batch_size: int) -> list[int]:
    """An ack set (bit i set: index i is not acknowledged yet) as Java BitSet words, signed, low word first."""
    if batch_size <= 64:
        return [signed64(ack_set & 0xFFFF_FFFF_FFFF_FFFF)]
    count = (batch_size + 63) >> 6
    data = (ack_set & ((1 << (count << 6)) - 1)).to_bytes(count << 3, "little")
    return list(struct.unpack(f"<{count}q", data))  # all words at once: each ACK of a large batch carries up to sixteen


def ack_set_from_words(words: list[int] | tuple[int, ...]) -> int:
    """The inverse of `ack_set_to_words`; words may be signed or unsigned."""
    if len(words) == 1:
        return words[0] & 0xFFFF_FFFF_FFFF_FFFF
    try:
        data = struct.pack(f"<{len(words)}q", *words)
    except struct.error:  # unsigned ones
        data = struct.pack(f"<{len(words)}Q", *map(unsigned64, words))
    return int.from_bytes(data, "little")


WHOLE_ENTRY: Final = -1
"""Every batch index of an entry, however many it has: a set with all bits."""


def full_ack_set(batch_size: int) -> int:
    """The ack set of a batch entry of which nothing is acknowledged."""
    return (1 << batch_size) - 1
