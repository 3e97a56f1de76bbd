"""The pending-ack handle: decisions over `PendingState`. See `transitions` for what happens when, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, assert_never

from pulsar_txn.ledger.machine import (
    ANSWER,
    ASK,
    NOTHING,
    Effect,
    MoveCursor,
    Redeliver,
    Reply,
    Step,
    VerifyRegistered,
    WriteSnapshot,
)
from pulsar_txn.rm_pending_ack.ack_sets import contains, normal_form, reaches, unacknowledged, up_to
from pulsar_txn.rm_pending_ack.conflicts import (
    check_cumulative,
    check_individual,
    covers_some,
    is_repeat,
    merged,
    well_formed,
)
from pulsar_txn.rm_pending_ack.held import ITEM_BYTES, KEY_BYTES, Held, bytes_of
from pulsar_txn.rm_pending_ack.records import NO_TXN, Op, Record, decode_record, encode_record, position_record
from pulsar_txn.rm_pending_ack.requests import (
    AckCumulative,
    AckIndividual,
    AckItem,
    CursorReset,
    CursorStored,
    CursorView,
    EndTxnOnSubscription,
    PendingAckStats,
    PlainAcked,
    Request,
    Verified,
)
from pulsar_txn.rm_pending_ack.snapshots import read_slice, write_slices
from pulsar_txn.rm_pending_ack.state import PendingState
from pulsar_txn.rm_pending_ack.transitions import END_EVENT, TRANSITIONS, Event, State
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import WHOLE_ENTRY, AckKey, Position, TxnAction, TxnId

LOG: Final = "log"
"""The one log of a handle."""


class PendingAckHandle:
    """Acknowledgements of one subscription that wait for the outcome of their transaction (Pulsar's pending ack).

    Implements `requests.PendingAck`; found by the entry point `log` of `pulsar_txn.pending_acks`.

    `snapshot_every`: a snapshot is asked for each time that many records were applied. `stored_every`: that many commits
    must be covered by the cursor before a record says so (in between a recovery moves the cursor again, which changes
    nothing). `max_transaction_bytes`, `max_bytes`: what one transaction, and all together with commits that the cursor has not
    stored, may hold, about; an ack beyond it is refused.
    """

    logs: Final = (LOG,)
    encode = staticmethod(encode_record)

    def __init__(
        self,
        topic: str,
        subscription: str,
        cursor_view: CursorView,
        *,
        snapshot_every: int = 10_000,
        stored_every: int = 64,
        max_transaction_bytes: int = 1 << 27,
        max_bytes: int = 1 << 28,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self._cursor = cursor_view
        self._snapshot_every = snapshot_every
        self._stored_every = stored_every
        self._max_transaction_bytes = max_transaction_bytes
        self._max_bytes = max_bytes
        self._state = PendingState()
        self.apply = self._state.apply
        self._ready = False

    # -- the fold

    def decide(self, request: Request, now_ms: int) -> Step[Record]:
        """Decide what to write and to release for a request; see the requests. Raises Refusal; changes nothing."""
        match request:
            case AckIndividual():
                return self._ack_individual(request, Event.ACK_INDIVIDUAL)
            case AckCumulative():
                return self._ack_cumulative(request, Event.ACK_CUMULATIVE)
            case EndTxnOnSubscription():
                return self._end(request)
            case PlainAcked():
                return self._plain_acked(request)
            case Verified():
                return self._verified(request)
            case CursorStored():
                return self._cursor_stored(request.sequence)
            case CursorReset():
                return self._cursor_reset(request.mark_delete)
            case _:
                assert_never(request)

    def decode(self, log: str, data: bytes) -> Record:
        """The record of an entry; raises WireError for other bytes, and for a newer version."""
        return decode_record(data)

    def recovered(self, now_ms: int) -> Step[Record]:
        """Move the cursor again for every commit that it may not have stored."""
        self._ready = True
        settled = self._state.settled
        if not settled:
            return NOTHING
        items = tuple(item for each in settled for item in each.individual())
        return Step(effects=(_move(items, self._state.settled_cumulative, settled[-1].sequence),))

    def deadline(self) -> int | None:
        """Nothing here is timed: transactions time out in their coordinator."""
        return None

    def expire(self, now_ms: int) -> Step[Record]:
        """Nothing here is timed."""
        return NOTHING

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment in slices, for `restore`."""
        return write_slices(self._state)

    def restore(self, part: bytes) -> None:
        """Take over the next slice of a snapshot; raises WireError for other bytes, and for a newer version."""
        read_slice(self._state, part)

    def trim_before(self, log: str) -> Position | None:
        """The first record that an open transaction, or a commit that the cursor may not have stored, still needs."""
        state = self._state
        if not state.applied:
            return None
        behind = (state.last[0], state.last[1] + 1)
        oldest = [oldest[1].first for known in state.coordinators.values() if (oldest := known.open.first()) is not None]
        return min([behind, *oldest, *(settled.first for settled in state.settled)])

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts itself (S12, S13, S15)."""
        self._state.check_invariants()

    # -- questions

    def pending(self, position: Position) -> int:
        """Pending part of an entry, as a bit set of batch indexes: 0 nothing, WHOLE_ENTRY all of it."""
        held = self._state.pending.get(position, 0)
        return WHOLE_ENTRY if held is None else held

    def stats(self) -> PendingAckStats:
        """Counters at this moment; the state is Initializing until `recovered`, then Ready."""
        coordinators = self._state.coordinators
        return PendingAckStats(
            "Ready" if self._ready else "Initializing",
            sum(len(coordinator.open) for coordinator in coordinators.values()),
            {most: known.low_watermark for most, known in coordinators.items() if known.low_watermark >= 0},
            None if self._state.last_committed == NO_TXN else self._state.last_committed,
        )

    def first_holder(self) -> TxnId | None:
        """The open transaction whose acknowledgements begin first in the topic; None: no open one holds any."""
        return self._state.first_holder()

    def position_state(self, position: Position, batch_index: int = -1) -> str:
        """`PendingAck`, `MarkDelete` or `NotInPendingAck`. A `batch_index` of -1 asks for the entry: any part counts."""
        bits = None if batch_index < 0 else 1 << batch_index
        item = (position, bits, 0)
        left = self._cursor.ack_set(position)
        if self._cursor.is_deleted(position) or (bits is not None and left is not None and not bits & left):
            return "MarkDelete"
        slot = self._state.slot
        behind = slot is not None and slot.cumulative is not None and up_to(slot.cumulative, position, bits) != 0
        if behind or self._state.held_part(item) is not None:
            return "PendingAck"
        settled = self._state.settled_cumulative
        if settled is not None and reaches(settled, item):
            return "MarkDelete"
        held = self._state.pending.get(position, 0)
        return "MarkDelete" if held != 0 and contains(held, bits) else "NotInPendingAck"

    def cumulative_position(self, txn_id: TxnId) -> Position | None:
        """The cumulative ack of an open transaction, None when it has none."""
        held = self._state.find(txn_id)
        return None if held is None or held.cumulative is None else held.cumulative[0]

    def transaction_state(self, txn_id: TxnId) -> State:
        """State of a transaction at this subscription."""
        return self._state.state_of(txn_id)

    # -- acks

    def _ack_individual(self, request: AckIndividual, event: Event) -> Step[Record]:
        own = self._state.find(request.txn_id)
        if own is None and self._has_to_ask(request.txn_id, event):
            return Step(effects=(VerifyRegistered(request.txn_id, request),))
        items = request.items
        if len(items) != 1:
            items = merged(map(well_formed, items))
        elif items[0][1] is not None:
            items = (well_formed(items[0]),)
        if not items or is_repeat(own, request.key, items, cumulative=False):  # ACK_REPEATED
            return Step(effects=(Reply(request.token),))
        for item in items:
            check_individual(self._state, self._cursor, item)
        self._check_room(request.txn_id, own, items, request.key)
        return self._step(Record(Op.ACK, request.txn_id, items, key=request.key), Reply(request.token))

    def _ack_cumulative(self, request: AckCumulative, event: Event) -> Step[Record]:
        own = self._state.find(request.txn_id)
        if own is None and self._has_to_ask(request.txn_id, event):
            return Step(effects=(VerifyRegistered(request.txn_id, request),))
        item = normal_form(well_formed(request.item))
        if is_repeat(own, request.key, (item,), cumulative=True):  # ACK_REPEATED
            return Step(effects=(Reply(request.token),))
        check_cumulative(self._state, self._cursor, own, item)
        self._check_room(request.txn_id, own, (), request.key)
        return self._step(Record(Op.ACK, request.txn_id, (item,), cumulative=True, key=request.key), Reply(request.token))

    def _check_room(self, txn_id: TxnId, own: Held | None, items: Sequence[AckItem], key: AckKey | None) -> None:
        """Refuse what would be more than may be held: NotAllowedError for the transaction, TooManyRequests for all."""
        one = len(items) == 1 and items[0][1] is None  # nearly always
        more = ITEM_BYTES if one else sum([bytes_of(bits) for _, bits, _ in items])
        if key is not None:
            more += KEY_BYTES
        held = 0 if own is None else own.bytes
        if held + more > self._max_transaction_bytes:
            text = f"transaction {txn_id} holds {held} bytes of acks on {self.subscription} and cannot hold {more} more"
            advice = "commit it and go on in another one, or raise maxPendingAckBytesPerTransaction"
            raise Refusal(ServerError.NotAllowedError, f"{text}; {advice}")
        if (held := self._state.bytes) + more > self._max_bytes:
            text = f"transactions hold {held} bytes of acks on {self.subscription} and cannot hold {more} more"
            advice = "retry when some of them have ended, or raise maxPendingAckBytesPerSubscription"
            raise Refusal(ServerError.TooManyRequests, f"{text}; {advice}")

    def _has_to_ask(self, txn_id: TxnId, event: Event) -> bool:
        """True if the coordinator has to be asked before an ack goes on. Refusal when the transaction is over here."""
        state = self._state.state_of(txn_id)
        cell = TRANSITIONS[state, event]
        if cell.code is not None:
            text = f"transaction {txn_id} is over on {self.subscription} ({state.name.lower()}); use a new transaction"
            raise Refusal(cell.code, text)
        return cell.act is ASK

    def _verified(self, answer: Verified) -> Step[Record]:
        request = answer.request
        if not answer.registered:
            code = TRANSITIONS[self._state.state_of(request.txn_id), Event.NOT_VERIFIED].code
            text = f"transaction {request.txn_id} is not open, or was not told of {self.subscription} on {self.topic}"
            raise Refusal(code or ServerError.NotAllowedError, text)
        if isinstance(request, AckIndividual):
            return self._ack_individual(request, Event.VERIFIED)
        return self._ack_cumulative(request, Event.VERIFIED)

    # -- ends

    def _end(self, request: EndTxnOnSubscription) -> Step[Record]:
        state, txn_id = self._state, request.txn_id
        known_as = state.state_of(txn_id)
        cell = TRANSITIONS[known_as, END_EVENT[request.action]]
        if cell.code is not None:
            raise Refusal(cell.code, f"transaction {txn_id} is {known_as.name.lower()} on {self.subscription}")
        if cell.act is ANSWER:
            return Step(effects=(Reply(request.token),))
        commit = request.action is TxnAction.COMMIT
        known = state.coordinators.get(txn_id.most)
        held = None if known is None else known.open.get(txn_id.least)
        freed = [] if known is None else known.stale(request.low_watermark, txn_id.least)
        effects: list[Effect] = []
        if held is not None and not commit:
            freed.insert(0, held)
        elif held is not None and (held.items or held.cumulative):
            effects.append(_move(held.ending(), held.cumulative, state.sequence + 1))
        if freed:
            effects.extend(_redelivery(freed))
        cumulative = held is not None and held.cumulative is not None
        op = Op.COMMIT if commit else Op.ABORT
        record = Record(op, txn_id, cumulative=cumulative, low_watermark=request.low_watermark)
        return self._step(record, *effects, Reply(request.token))

    # -- the cursor

    def _plain_acked(self, request: PlainAcked) -> Step[Record]:
        state = self._state
        step: Step[Record] = NOTHING
        near = [item for item in merged(request.items) if item[0] in state.pending]
        touched = tuple(part for item in near if (part := state.held_part(item)) is not None)
        if touched:
            step = self._step(Record(Op.PLAIN_ACK, items=touched), _move(touched, None, state.sequence + 1))
        cumulative = None if request.cumulative is None else normal_form(request.cumulative)
        if cumulative is None or not self._touches(cumulative):
            return step
        record = Record(Op.PLAIN_ACK, items=(cumulative,), cumulative=True)
        return self._step(record, _move((), cumulative, state.sequence + len(step.records) + 1), before=step)

    def _touches(self, cumulative: AckItem) -> bool:
        """True if open transactions hold anything that a cumulative ack covers."""
        slot = self._state.slot
        if slot is not None and slot.cumulative is not None and reaches(cumulative, slot.cumulative):
            return True
        return any(covers_some(held, cumulative) for held in self._state.behind(cumulative))

    def _cursor_stored(self, sequence: int) -> Step[Record]:
        settled, enough = self._state.settled, max(self._stored_every, 1)
        if len(settled) < enough or settled[enough - 1].sequence > sequence:
            return NOTHING
        *_, newest = takewhile(lambda each: each.sequence <= sequence, settled)
        noted = self._step(position_record(Op.CURSOR_STORED, newest.at))
        return Step(effects=noted.effects, trailing=noted.records)

    def _cursor_reset(self, mark_delete: Position) -> Step[Record]:
        reached = (mark_delete, None, 0)
        if self._state.settled or self._touches(reached):
            return self._step(position_record(Op.CURSOR_RESET, mark_delete))
        return NOTHING

    def _step(self, record: Record, *effects: Effect, before: Step[Record] = NOTHING) -> Step[Record]:
        """A Step that writes one record (after those of `before`), and asks for a snapshot when it is time."""
        nth = self._state.applied + len(before.records) + 1
        ask = () if nth % self._snapshot_every else (WriteSnapshot(LOG),)
        return Step((*before.records, (LOG, record)), (*before.effects, *effects, *ask))


def _move(items: Sequence[AckItem], cumulative: AckItem | None, sequence: int) -> MoveCursor:
    if cumulative is None:
        return MoveCursor(items, None, sequence)
    position, bits, batch_size = cumulative
    return MoveCursor(items, (position, unacknowledged(bits, batch_size), batch_size), sequence)


def _redelivery(freed: Iterable[Held]) -> tuple[Redeliver, ...]:
    """Redelivery of the messages that aborted transactions held individually.

    A cumulative ack brings nothing back by itself, as on stock Pulsar: its consumer has the messages in its hands and
    may have gone on; given again without its knowledge, it would skip them with its next cumulative ack. They come again when
    the consumer asks, or reconnects.
    """
    positions = tuple((position, bits) for held in freed for position, (bits, _) in held.items.items())
    return (Redeliver(positions),) if positions else ()
