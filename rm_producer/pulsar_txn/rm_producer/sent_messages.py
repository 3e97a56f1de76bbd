"""Messages of the open transactions of a topic, so that one that is sent again is not stored again.

A client that lost a receipt, or its connection, sends once more what was not answered: the same bytes, with the same producer
name and the same sequence ids. In a transaction such a repeat is always recognised, whether the topic looks for duplicates or
not: nobody can take a second copy out of a committed transaction. Other bytes with these ids are another message, and
refused: one of the two would be lost. The fold of the log knows what was sent, so a restart forgets nothing.

What a producer sent is remembered for as long as its transaction is open on the topic, 24 bytes for each entry, within limits
(see `sent_ids`). Producers beside the first one of a transaction are counted, and there may be so many of them on a topic.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, TypeAlias

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EntryHeader, TxnId

from .sent_ids import IdsImage, SentIds
from .snapshots import pack_columns, unpack_columns

MAX_FURTHER_PRODUCERS: Final = 65_536
"""Producers on one topic beside the first one of each open transaction."""

_ROWS_PER_SLICE: Final = 1024
_NUMBERS_PER_SLICE: Final = 6_000

_SenderImage: TypeAlias = tuple[tuple[str, IdsImage], ...]
_Row: TypeAlias = tuple[TxnId, str, IdsImage]


class _Senders:
    """The producers of one transaction. Most have one."""

    __slots__ = ("first", "name", "others")

    def __init__(self, name: str) -> None:
        self.name = name
        self.first = SentIds()
        self.others: dict[str, SentIds] | None = None

    def of(self, name: str) -> SentIds | None:
        """The ids of one producer."""
        if name == self.name:
            return self.first
        return None if self.others is None else self.others.get(name)

    def names(self) -> tuple[str, ...]:
        """All producers, in the order in which they came."""
        return (self.name, *(self.others or ()))

    def image(self) -> _SenderImage:
        """Image for a snapshot."""
        others = () if self.others is None else tuple((name, ids.image()) for name, ids in self.others.items())
        return ((self.name, self.first.image()), *others)


class SentMessages:
    """The ids of all open transactions of one topic. Changed by the `apply` of its buffer only."""

    def __init__(self) -> None:
        self.further = 0
        self._of: OrderedMap[TxnId, _Senders] = OrderedMap(_Senders.image)
        self._names: dict[str, list[int]] = {}  # derived: highest id, and in how many open transactions

    def is_repeat(self, txn_id: TxnId, header: EntryHeader) -> bool:
        """True if the open transaction has this entry already. Refusal NotAllowedError when it has another one with its ids."""
        senders = self._of.get(txn_id)
        if senders is None or (ids := senders.of(header.producer_name)) is None:
            return False
        hints, first, last = header.hints, header.sequence_id, header.highest_sequence_id
        chunk_id = None if hints is None or hints.chunk_of is None else hints.chunk_id
        repeats = ids.is_repeat(first, first if chunk_id is not None else last, header.checksum, chunk_id)
        if repeats is None:
            text = (
                f"producer {header.producer_name!r} has sent another message with sequence id {first} in transaction {txn_id}"
            )
            why = "or so many out of order that nobody knows"
            raise Refusal(ServerError.NotAllowedError, f"{text}, {why}; abort it, and give each message an id of its own")
        return repeats

    def check_room(self, txn_id: TxnId, header: EntryHeader) -> None:
        """Refusal TooManyRequests for one more producer than may be remembered."""
        if self.further < MAX_FURTHER_PRODUCERS:  # nearly always
            return
        senders = self._of.get(txn_id)
        if senders is not None and senders.of(header.producer_name) is None:
            text = f"{self.further} producers beside the first ones are in open transactions on this topic"
            raise Refusal(ServerError.TooManyRequests, f"{text}; retry when some of them have ended, or use fewer producers")

    def note(self, txn_id: TxnId, header: EntryHeader) -> None:
        """An entry of an open transaction is in the log."""
        name = header.producer_name
        senders = self._of.get(txn_id)
        if senders is None:
            senders = self._of[txn_id] = _Senders(name)
            self._begun(name)
        elif self._of.moments:
            self._of.changing(txn_id)
        ids = senders.first if name == senders.name else self._further(senders, name)
        hints, last = header.hints, header.highest_sequence_id
        if hints is None or hints.chunk_of is None:
            ids.note(header.sequence_id, last, header.checksum)
        else:
            ids.note_chunk(header.sequence_id, header.checksum, hints.chunk_id, hints.chunks)
        if last > (known := self._names[name])[0]:
            known[0] = last

    def ended(self, txn_id: TxnId) -> None:
        """The transaction is not open here any more; it may never have been."""
        senders = self._of.pop(txn_id)
        if senders is None:
            return
        if senders.others is not None:
            self.further -= len(senders.others)
        for name in senders.names():
            known = self._names[name]
            known[1] -= 1
            if not known[1]:
                del self._names[name]

    def last(self, name: str) -> int:
        """The highest id of a producer in open transactions, or one above it; -1 when it is in none."""
        known = self._names.get(name)
        return -1 if known is None else known[0]

    def _begun(self, name: str) -> None:
        known = self._names.get(name)
        if known is None:
            self._names[name] = [-1, 1]
        else:
            known[1] += 1

    def _further(self, senders: _Senders, name: str) -> SentIds:
        if senders.others is None:
            senders.others = {}
        ids = senders.others.get(name)
        if ids is None:
            ids = senders.others[name] = SentIds()
            self.further += 1
            self._begun(name)
        return ids

    # ---- snapshots

    def slices(self) -> Iterator[bytes]:
        """The columns of this moment, some producers at a time. Equal states give equal slices."""
        return _slices(self._of.moment().groups())

    def restore(self, data: bytes, offset: int) -> None:
        """Take over one slice. Raises WireError for other bytes."""
        for txn_id, name, image in _rows(list(unpack_columns(data, offset))):
            senders = self._of.get(txn_id)
            if senders is None:
                senders = self._of[txn_id] = _Senders(name)
                self._begun(name)
            ids = senders.first if name == senders.name else self._further(senders, name)
            ids.restore(image)
            highest = max([ids.last, *(sequence_id for sequence_id, _ in image[2])])
            self._names[name][0] = max(self._names[name][0], highest)

    def check_invariants(self, is_open: Container[TxnId]) -> str | None:
        """First contradiction in the state, or with the transactions that are open; None without one."""
        counts: dict[str, int] = {}
        for txn_id, senders in self._of.items():
            if txn_id not in is_open:
                return f"ids of {txn_id} are kept, and it is not open"
            for name in senders.names():
                counts[name] = counts.get(name, 0) + 1
                ids = senders.of(name)
                if ids is None or not ids.check_invariants() or ids.last > self.last(name):
                    return f"ids of {name!r} in {txn_id} are out of order, or above the highest"
        if counts != {name: count for name, (_, count) in self._names.items()}:
            return "producers of open transactions are not counted"
        return None if self.further == sum(counts.values()) - len(self._of) else "further producers are not counted"


def _slices(groups: Iterator[list[tuple[TxnId, _SenderImage]]]) -> Iterator[bytes]:
    rows: list[_Row] = []
    numbers = 0
    for group in groups:
        for txn_id, image in group:
            for name, ids in (part for each in image for part in _parts(*each)):
                rows.append((txn_id, name, ids))
                numbers += len(name) + len(ids[0]) + len(ids[1]) + 2 * len(ids[2])
                if len(rows) >= _ROWS_PER_SLICE or numbers >= _NUMBERS_PER_SLICE:
                    yield _packed(rows)
                    rows, numbers = [], 0
    if rows:
        yield _packed(rows)


def _parts(name: str, ids: IdsImage) -> Iterator[tuple[str, IdsImage]]:
    """An image in parts that fit into a slice: nearly always one."""
    ranges, entries, chunks = ids
    size = _NUMBERS_PER_SLICE
    yield name, (ranges[:size], entries[:size], chunks)
    for at in range(size, max(len(ranges), len(entries)), size):
        yield name, (ranges[at : at + size], entries[at : at + size], ())


def _packed(rows: list[_Row]) -> bytes:
    names = [name.encode() for _, name, _ in rows]
    ranges = [image[0] for *_, image in rows]
    entries = [image[1] for *_, image in rows]
    chunked = [image[2] for *_, image in rows]
    flat = [number for each in ranges for number in each]
    pairs = [pair for each in chunked for pair in each]
    return pack_columns(
        [
            [txn_id.most for txn_id, *_ in rows],
            [txn_id.least for txn_id, *_ in rows],
            [len(name) for name in names],
            list(b"".join(names)),
            [len(each) for each in ranges],
            flat[::2],
            flat[1::2],
            [len(each) for each in chunked],
            [sequence_id for sequence_id, _ in pairs],
            [chunk_id for _, chunk_id in pairs],
            [len(each) for each in entries],
            [number for each in entries for number in each],
        ]
    )


def _rows(columns: list[list[int]]) -> Iterator[_Row]:
    try:
        mosts, leasts, sizes, letters, range_counts, firsts, lasts, chunk_counts, sequence_ids, chunk_ids, *later = columns
        if not later:  # an earlier version knew ranges only, and counted those of single chunks as well
            later = [[0] * len(mosts), []]
        entry_counts, numbers = later
        entries = iter(numbers)
        names, at = bytes(letters), 0
        ranges = iter([number for pair in zip(firsts, lasts, strict=True) for number in pair])
        chunks = iter(list(zip(sequence_ids, chunk_ids, strict=True)))
        counts = zip(mosts, leasts, sizes, range_counts, chunk_counts, entry_counts, strict=True)
        for most, least, size, range_count, chunk_count, entry_count in counts:
            name = names[at : at + size].decode()
            at += size
            image = (
                tuple([next(ranges) for _ in range(range_count)]),
                tuple([next(entries) for _ in range(entry_count)]),
                tuple([next(chunks) for _ in range(chunk_count)]),
            )
            yield TxnId(most, least), name, image
    except (ValueError, StopIteration, RuntimeError) as error:
        raise WireError(f"a damaged snapshot of what open transactions have: {error!r}") from error
