"""Requests to a transaction buffer, and the view of it that the host's read path uses.

Logs are named by the roles in `TransactionBuffer.logs`: `"topic"` is the topic itself, others (`"half"`, `"op"`)
are the buffer's own, which the host opens as `<topic>-<role>`.

A topic record is a message entry: `TopicRecord(header, data)`, its bytes are the entry. The host never calls `decode`
for `"topic"` (it raises WireError there): in recovery it decodes the header of what it reads
(`wire.entries.read_header`) and calls `apply("topic", position, TopicRecord(header))`, or PLAIN for it. A buffer's own
logs (`"half"`, `"op"`) are written with its `encode` and read with its `decode`, as those of any machine.
A plain (non-transactional) publish does not pass `decide`: the host appends it and calls
`apply("topic", position, PLAIN)`. So that replay sees what was seen live, the host refuses plain sends whose metadata
names a transaction or a marker type, and stamps the transaction of CommandSend into the metadata of those that lack it
(`wire.entries.with_txn_id`). The topic is never trimmed after max_read_position.

What readers see: after each `apply` the host notes (position applied, buffer.max_read_position) when the latter
changed, and publishes the newest note whose position is confirmed. So a marker that is in flight raises nothing,
and the published value is never beyond the last confirmed entry. `PublishMaxRead` is for changes without a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from pulsar_txn.ledger.machine import Machine, Token
from pulsar_txn.wire.ids import EntryHeader, Position, TxnAction, TxnId
from pulsar_txn.wire.values import value


@value
class TopicRecord:
    """An entry of a topic: its header, and its bytes (from the magic on) when it is to be appended."""

    header: EntryHeader
    data: Any = None


PLAIN: Final = TopicRecord(EntryHeader("", 0, 0, 0))
"""Stands for every entry without a transaction and without a marker: a buffer learns only its position."""


@value
class Publish:
    """A transactional SEND. Reply: `position_of=0` (the receipt), once durable. `record.header.txn_id` is `txn_id`.

    A transaction that is not ongoing here gives VerifyRegistered first. A repeat (its transaction has an entry of
    the same producer name and sequence ids; of a chunk, with its number) writes nothing: Reply value EARLIEST.
    Refusals: NotAllowedError (ended here, at or below the low watermark of its coordinator, or the header names another
    transaction or a marker type), ServiceNotReady (before `recovered`, as for every request).
    """

    token: Token
    txn_id: TxnId
    record: TopicRecord


@value
class Verified:
    """The coordinator's answer to VerifyRegistered: `request` goes on if `registered`, else NotAllowedError.

    It may come in place of `request` (see VerifyRegistered); in a state that does not ask, it is decided as `request` is.
    """

    request: Publish
    registered: bool


@value
class EndTxnOnPartition:
    """The coordinator tells the outcome. Reply value None once the marker is durable; a repeat is a no-op with the same answer.

    `marker` is the encoded marker entry to append (made by the host, which knows the time); a buffer appends it only
    where there is something to end.
    `low_watermark`: transactions of this coordinator with least <= it are over (-1: none). So that a replay knows it too,
    the marker carries it: `highest_sequence_id` of its header is `low_watermark + 1` (0: none, which is what stock
    Pulsar writes; it does not read the field in markers).
    Refusals: InvalidTxnStatus (the other outcome is known here).
    """

    token: Token
    txn_id: TxnId
    action: TxnAction
    low_watermark: int
    marker: TopicRecord


@value
class Copied:
    """The host read `position` of log `source` for a CopyEntries effect: append it to `target`."""

    source: str
    target: str
    position: Position
    record: TopicRecord
    txn_id: TxnId | None = None


@value
class TakeSnapshot:
    """The host wants a snapshot now: at shutdown, and when a restart would have much to replay, plain publishes included."""


Request: TypeAlias = Publish | Verified | EndTxnOnPartition | Copied | TakeSnapshot


@value
class BufferStats:
    """Counters of a buffer, as Pulsar's transactionBufferStats names them."""

    state: str
    max_read_position: Position
    ongoing_txn_size: int
    total_aborted_transactions: int
    committed_txn_count: int
    aborted_txn_count: int
    low_watermarks: dict[int, int]


@value
class Waiting:
    """Messages that a buffer keeps beside the topic until their transaction is committed, as positions in its own log.

    `last`: the last entry that was put there. `first`: the first entry of the oldest transaction that is not whole in the
    topic; None when there is none.
    """

    last: Position
    first: Position | None


class TransactionBuffer(Machine[Request, TopicRecord], Protocol):
    """A buffer plug-in. Constructed by the host as `factory(topic, make_marker)`.

    `make_marker(txn_id, action)` gives the TopicRecord of a marker, for ends that the buffer decides itself
    (low watermark). `restore`, `apply`, `recovered` come before the first request.
    """

    @property
    def max_read_position(self) -> Position:
        """Readers may see entries up to here, as far as they are confirmed; EARLIEST until `recovered`."""

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        """True if an entry at or below max_read_position is not for readers: a marker, or of an aborted transaction."""

    def is_aborted(self, txn_id: TxnId) -> bool:
        """True if the transaction is known as aborted here."""

    def first_position(self, txn_id: TxnId) -> Position | None:
        """The position of an open transaction's first entry; None when it is not ongoing here."""

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest sequence id that a producer has in transactions that are open here; -1 when it is in none of them.

        A new producer of that name goes on after it, so that none of its messages is taken for a repeat.
        """

    def stats(self) -> BufferStats:
        """Counters at this moment."""

    def waiting(self) -> Waiting | None:
        """Messages that wait beside the topic; None for a buffer that keeps open transactions in the topic itself."""

    def topic_trimmed(self, before: Position) -> bool:
        """Entries of the topic before `before` are gone: aborted transactions that lie wholly there may be forgotten.

        A bounded number of them is forgotten in one call; True when there are more: the host calls again, in a later turn.

        Called after each trim, and after a restart with the topic's first entry: so trims need no record.
        """


MakeMarker: TypeAlias = Callable[[TxnId, TxnAction], TopicRecord]
