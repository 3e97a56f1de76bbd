"""The records on a sink's control topic, and what the commit of a micro-batch asks of the outside world.

A record is JSON, so that people can read the topic with any consumer. All records of one sink are written by one
producer at a time, the one with the newest epoch.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from pulsar_txn.pipeline.spark.errors import SinkStateLost

FORMAT: Final = 1

Place: TypeAlias = tuple[int, int]
"""Ledger and entry of something on the staging topic."""


@attrs.frozen
class Intent:
    """Written before a transaction is used, so that a later run can end it. Not transactional."""

    sink_id: str
    batch_id: int
    txn_id: str


@attrs.frozen
class Barrier:
    """Written by a run that wants to see everything before it decided. Not transactional.

    Nothing after an open transaction is visible; so a reader that sees the barrier has seen every marker before it, or will
    never see it because its transaction was aborted.
    """

    sink_id: str
    epoch: int
    number: int


@attrs.frozen
class Marker:
    """Says that a micro-batch is published; written in the transaction of its rows. `rows` counts them by topic.

    `query_id` is in the checkpoint of the query that wrote it; records of older versions have an empty one. `source_ends` are
    the offsets up to which the query has read then, one JSON text per source of ours; empty when the sink cannot know them.

    The last three fields prove that what comes under this number again is the same work. They are stored when they are not
    empty, so that records without them can be read by older versions.
    """

    sink_id: str
    batch_id: int
    epoch: int
    txn_id: str
    rows: dict[str, int] = attrs.field(factory=dict)
    query_id: str = ""
    source_ends: list[str] = attrs.field(factory=list)
    target: str = ""
    """Full name of the topic that a call of `write_batch` or a version of a job writes to; `*` for a column `topic`."""
    offsets: str = ""
    """Digest of the micro-batch's offsets of all sources, as the checkpoint has them."""
    earlier: dict[str, str] = attrs.field(factory=dict)
    """Targets of the versions before this one, by version: the newest ones."""


Record: TypeAlias = Intent | Barrier | Marker
_KINDS: Final[dict[tuple[int, str], type[Record]]] = {
    (FORMAT, "intent"): Intent,
    (FORMAT, "barrier"): Barrier,
    (FORMAT, "marker"): Marker,
}
_NAMES: Final = {kind: name for (_, name), kind in _KINDS.items()}
_PROOFS: Final = frozenset({"target", "offsets", "earlier"})


def encode_record(record: Record) -> bytes:
    """A record as JSON."""
    given = {name: value for name, value in attrs.asdict(record).items() if value or name not in _PROOFS}
    fields = {"v": FORMAT, "kind": _NAMES[type(record)], **given}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode_record(data: bytes) -> Record:
    """The inverse; SinkStateLost for other bytes, because then the topic belongs to another program."""
    try:
        fields = json.loads(data)
        kind = _KINDS[fields.pop("v"), fields.pop("kind")]
        known = {field.name for field in attrs.fields(kind)}  # a later version may have written more
        return kind(**{name: value for name, value in fields.items() if name in known})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkStateLost(
            f"the control topic holds something else than records of this version ({error}): {data[:80]!r}; "
            "give the sink a controlTopic of its own"
        ) from error


class EndReply(enum.Enum):
    """The answer to END_TXN."""

    DONE = "done"
    """Carried out."""
    OVER = "over"
    """The coordinator does not know the transaction: it is over, whichever way."""
    BUSY = "busy"
    """The group has, or was brought to, the other end; also while that is being carried out."""
    UNKNOWN = "unknown"
    """No answer, or none that decides."""


@attrs.frozen
class Fence:
    """Become the only producer of the control topic. Reply: the epoch (int). Records are then read from the start."""


@attrs.frozen
class WriteRecord:
    """Write a record as the fenced producer, in a transaction or (None) not; reply None once it is stored.

    SinkFenced when another run took over, StoreFailed.
    """

    record: Record
    txn_id: str | None = None


@attrs.frozen
class ReadRecords:
    """Reply: all records that are visible now (read committed) and were not in an earlier reply since `Fence`."""


@attrs.frozen
class NewTxn:
    """Begin a transaction. Reply: its id (str)."""


@attrs.frozen
class Publish:
    """Send the rows that came with the tasks' messages, in a transaction, and wait for all receipts.

    Reply: rows by topic. StoreFailed.
    """

    txn_id: str


@attrs.frozen
class OpenStaging:
    """Read the staging topic from this place, inclusive. Reply None; StoreFailed."""

    first: Place


@attrs.frozen
class ReadStaging:
    """Reply: the places of the next entries of the staging topic, at least one; none when it has no more. StoreFailed."""


@attrs.frozen
class Forward:
    """Send an entry of the last `ReadStaging` to its target, in a transaction, without waiting. Reply None; StoreFailed."""

    txn_id: str
    place: Place


@attrs.frozen
class Receipts:
    """Wait for the receipts of everything forwarded since `OpenStaging`. Reply: rows by topic. StoreFailed."""


@attrs.frozen
class ReleaseStaging:
    """Let Pulsar delete the staging topic up to and with this place. Reply None, also when that failed: nothing rests on it."""

    last: Place


@attrs.frozen
class EndTxn:
    """END_TXN, asked again while no answer comes. Reply: EndReply."""

    txn_id: str
    commit: bool


@attrs.frozen
class Acknowledge:
    """Acknowledge what the micro-batch was made of, by topic partition, in a transaction.

    Reply None; AckConflict, StoreFailed.
    """

    txn_id: str
    places: Mapping[str, Place]


@attrs.frozen
class EndGroup:
    """Commit `txn_id` and `delivered` by one record, and abort what else the sink's epoch has open. Reply: EndReply."""

    txn_id: str
    delivered: Sequence[str]


@attrs.frozen
class Sweep:
    """Abort whatever the sink's epoch has open. Reply None, also when that failed: then the transactions time out."""


@attrs.frozen
class Pause:
    """Wait a moment. Reply: True while the commit's time is not over."""


Request: TypeAlias = (
    Fence
    | WriteRecord
    | ReadRecords
    | NewTxn
    | Publish
    | OpenStaging
    | ReadStaging
    | Forward
    | Receipts
    | ReleaseStaging
    | EndTxn
    | Acknowledge
    | EndGroup
    | Sweep
    | Pause
)
