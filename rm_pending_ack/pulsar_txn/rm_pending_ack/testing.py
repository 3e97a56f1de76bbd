"""The public conformance suite of pending-ack plug-ins, and a host in memory to drive one with.

A plug-in passes when every function of `CHECKS` returns. With pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_plug_in_keeps_the_promises_of_pending_acks(check):
        check(MyPendingAck)

`Subscription` drives the host that serves a handle in a broker as well (`ledger.hosting`): it confirms when told to, moves a
cursor whose storage lags as far as one likes, crashes with any part of what was not confirmed, and recovers. Failures are
AssertionErrors that say what was promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from pulsar_txn.ledger.by_hand import ByToken, HandLog, Skin, hosted
from pulsar_txn.ledger.hosting import Host
from pulsar_txn.ledger.machine import Effect, MoveCursor, Redeliver, Step
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.rm_pending_ack.requests import (
    AckCumulative,
    AckIndividual,
    AckItem,
    CursorReset,
    CursorStored,
    CursorView,
    EndTxnOnSubscription,
    PendingAck,
    PlainAcked,
    Request,
    Verified,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import AckKey, Position, TxnAction, TxnId, full_ack_set

Factory: TypeAlias = Callable[[str, str, CursorView], PendingAck]
Message: TypeAlias = tuple[int, int]
"""(entry id, index in the batch); all entries lie in ledger `LEDGER`."""

LEDGER: Final = 7
LOG_LEDGER: Final = 40


def at(entry: int) -> Position:
    """The position of an entry of the topic."""
    return (LEDGER, entry)


def messages_of(sizes: list[int], item: AckItem) -> set[Message]:
    """The messages that an individual item names."""
    (_, entry), bits, _ = item
    return {(entry, index) for index in range(max(sizes[entry], 1)) if bits is None or bits >> index & 1}


def messages_up_to(sizes: list[int], item: AckItem) -> set[Message]:
    """The messages that a cumulative item covers."""
    before = range(max(0, min(item[0][1], len(sizes))))
    here = messages_of(sizes, item) if 0 <= item[0][1] < len(sizes) else set()
    return here.union(*(messages_of(sizes, (at(entry), None, 0)) for entry in before))


class ListedCursor:
    """A cursor that lists every acknowledged message; `sizes[i]` is the batch size of entry i, 0 when it is not batched."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.acked: set[Message] = set()

    @property
    def mark_delete(self) -> Position:
        """The last entry of the acknowledged prefix."""
        entry = 0
        while entry < len(self.sizes) and self.is_deleted(at(entry)):
            entry += 1
        return at(entry - 1)

    def is_deleted(self, position: Position) -> bool:
        """True if the whole entry is acknowledged."""
        return messages_of(self.sizes, (position, None, 0)) <= self.acked

    def ack_set(self, position: Position) -> int | None:
        """Bits of the indexes not acknowledged yet when a part is, else None."""
        named = messages_of(self.sizes, (position, None, 0))
        left = named - self.acked
        return sum(1 << index for _, index in left) if left and left != named else None

    def change(self, change: MoveCursor | PlainAcked | CursorReset) -> None:
        """Apply a move, a plain ack or a reset."""
        if isinstance(change, CursorReset):
            self.acked = messages_up_to(self.sizes, (change.mark_delete, None, 0))
            return
        for item in change.individual if isinstance(change, MoveCursor) else change.items:
            self.acked |= messages_of(self.sizes, item)
        if change.cumulative is not None:
            position, bits, size = change.cumulative
            if isinstance(change, MoveCursor) and bits is not None:
                bits = full_ack_set(size) & ~bits
            self.acked |= messages_up_to(self.sizes, (position, bits, size))


class Subscription:
    """A subscription with one pending-ack handle. `confirm` and `store` say when the log and the cursor become durable.

    `participants`: transactions whose coordinator says that they are open and registered here; None: all are.
    """

    def __init__(self, factory: Factory, sizes: list[int], participants: set[TxnId] | None = None) -> None:
        self.factory = factory
        self.sizes = sizes
        self.participants = participants
        self.log = HandLog("log", LOG_LEDGER)
        self.changes: list[MoveCursor | PlainAcked | CursorReset] = []
        self.stored = 0
        self.answers: dict[Any, ServerError | None] = {}
        self.redelivered: list[tuple[Position, int | None]] = []
        self._resets: list[tuple[int, int]] = []
        self._start(0)

    def _start(self, changes: int) -> None:
        del self.changes[changes:]
        self.stored = self._life = changes
        self.cursor = ListedCursor(self.sizes)
        for change in self.changes:
            self.cursor.change(change)
        log = self.log
        self.log = HandLog("log", LOG_LEDGER, log.entries, stored=log.stored, trimmed=log.trimmed)
        self.machine = self.factory("topic", "subscription", self.cursor)
        self._seen = ByToken(self.machine, self._answered, Verified)
        skin = _SubscriptionSkin(self)
        self.host: Host[Any, Any] = hosted(
            self._seen, {"log": self.log}, skin, skin, registration=skin, verified=self._seen.verified
        )

    def _answered(self, token: Any, _value: Any, error: ServerError | None, _message: str) -> None:
        self.answers[token] = error

    # ---- what a test does

    @property
    def entries(self) -> list[bytes]:
        """Everything that is in the redo log, trimmed or not."""
        return [data for _, data in self.log.entries]

    @property
    def confirmed(self) -> int:
        """Number of durable entries."""
        return self.log.last_confirmed[1] + 1

    @property
    def trimmed(self) -> int:
        """Number of entries that the handle needs no more."""
        return max(0, self.log.trimmed[1])

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot that is stored."""
        return self.log.stored

    def replay(self, machine: PendingAck, start: int) -> None:
        """Apply the log from an entry on."""
        for position, data in self.log.entries[start:]:
            machine.apply("log", position, machine.decode("log", data))

    def carry_out(self, step: Step[Any]) -> None:
        """Carry out what the handle was asked to decide beside its host."""
        self.host.carry_out(self._seen.shown(step))

    def send(self, request: Request) -> Step[Any] | Refusal:
        """Carry out a request, with the coordinator's answer when it is asked for; returns what the handle decided last."""
        self.host.submit(self._seen.asked(request))
        decided = self._seen.decided
        assert decided is not None  # noqa: S101 - a request was decided
        return decided

    def answer(self, request: AckIndividual | AckCumulative | EndTxnOnSubscription) -> ServerError | None:
        """Send, confirm everything, and return the error of the answer (None: it succeeded)."""
        self.send(request)
        self.confirm()
        return self.answers.pop(request.token)

    def plain_ack(self, items: Iterable[AckItem] = (), cumulative: AckItem | None = None) -> Step[Any] | Refusal:
        """Acknowledge outside transactions: the cursor first, then the handle hears of it."""
        request = PlainAcked(tuple(items), cumulative)
        self.change(request)
        return self.send(request)

    def seek(self, entry: int) -> Step[Any] | Refusal:
        """Reset the cursor: its change becomes durable no later than the handle's record."""
        request = CursorReset(at(entry))
        self.change(request)
        before = len(self.entries)
        step = self.send(request)
        if len(self.entries) > before:
            self._resets.append((before, len(self.changes)))
        return step

    def confirm(self, upto: int | None = None) -> None:
        """The log is durable up to that many entries (None: all); what waited for it is released."""
        self.log.confirm(None if upto is None else (LOG_LEDGER, upto - 1))

    def store(self, upto: int | None = None) -> None:
        """The cursor is durable up to that many changes (None: all); tell the handle which moves that covers."""
        self.stored = max(self.stored, len(self.changes) if upto is None else upto)
        moves = [change.sequence for change in self.changes[self._life : self.stored] if isinstance(change, MoveCursor)]
        if moves:
            self.send(CursorStored(moves[-1]))

    def crash(self, entries: int, changes: int) -> None:
        """Die and recover with that many log entries and cursor changes (at least what is confirmed and stored)."""
        kept = max(entries, self.confirmed)
        self.log.cut(kept)
        self._resets = [(entry, change) for entry, change in self._resets if entry < kept]
        self._start(max([changes, self.stored, *(change for _, change in self._resets)]))

    def recover(self, entries: list[tuple[Position, bytes]]) -> None:
        """Begin with this log, and a cursor that has stored nothing."""
        self.log = HandLog("log", LOG_LEDGER, entries)
        self._start(0)

    def visible(self) -> set[Message]:
        """Messages that a dispatcher may deliver: neither acknowledged nor pending."""
        seen = set()
        for entry in range(len(self.sizes)):
            pending = self.machine.pending(at(entry))
            hidden = messages_of(self.sizes, (at(entry), pending, 0))
            seen |= messages_of(self.sizes, (at(entry), None, 0)) - hidden
        return seen - self.cursor.acked

    def change(self, change: MoveCursor | PlainAcked | CursorReset) -> None:
        """Change the cursor, in memory."""
        self.changes.append(change)
        self.cursor.change(change)


class _SubscriptionSkin(Skin):
    """Subscription as the host of a handle sees it."""

    now_ms = 0

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def knows(self, txn_id: TxnId) -> bool:
        """The coordinator's answer."""
        participants = self._subscription.participants
        return participants is None or txn_id in participants

    def ask(self, txn_id: TxnId, answer: Callable[[bool | None], None]) -> None:
        """The coordinator's answer, when it is no."""
        answer(self.knows(txn_id))

    def perform(self, effect: Effect) -> None:
        """Move the cursor, or redeliver."""
        match effect:
            case MoveCursor():
                self._subscription.change(effect)
            case Redeliver(positions=positions):
                self._subscription.redelivered.extend(positions)
            case _:
                promise(False, f"a pending-ack handle has no effect {effect}")

    def failed(self, error: Exception) -> None:
        """A handle makes no host fail."""
        raise AssertionError(f"the host failed: {error}") from error


def state_of(machine: PendingAck) -> bytes:
    """The whole state of a handle, to compare it with another's."""
    return b"".join(machine.snapshot())


def promise(kept: bool, promised: str) -> None:
    """Raise AssertionError when a promise is not kept."""
    if not kept:
        raise AssertionError(promised)


FIRST: Final = TxnId(0, 1)
SECOND: Final = TxnId(0, 2)
CONFLICT: Final = ServerError.TransactionConflict
SIZES: Final = [0, 4, 4, 0, 0]

Check: TypeAlias = Callable[[Factory], None]
CHECKS: Final[list[Check]] = []
"""All checks, each `check(factory)`."""


def _check(body: Callable[[Subscription], None]) -> Check:
    def check(factory: Factory) -> None:
        body(Subscription(factory, list(SIZES)))

    check.__name__ = body.__name__
    check.__doc__ = body.__doc__
    CHECKS.append(check)
    return check


def ack(txn_id: TxnId, *items: AckItem, token: object = None, key: AckKey | None = None) -> AckIndividual:
    """An individual ack; the token is the transaction unless given."""
    return AckIndividual(token or txn_id, txn_id, items, key)


def ack_up_to(txn_id: TxnId, item: AckItem, *, key: AckKey | None = None) -> AckCumulative:
    """A cumulative ack whose token is the transaction."""
    return AckCumulative(txn_id, txn_id, item, key)


def end(txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> EndTxnOnSubscription:
    """An end whose token is the transaction."""
    return EndTxnOnSubscription(txn_id, txn_id, action, low_watermark)


def commit(txn_id: TxnId) -> EndTxnOnSubscription:
    """A commit."""
    return end(txn_id, TxnAction.COMMIT)


def abort(txn_id: TxnId) -> EndTxnOnSubscription:
    """An abort."""
    return end(txn_id, TxnAction.ABORT)


def whole(entry: int) -> AckItem:
    """The whole entry."""
    return (at(entry), None, SIZES[entry])


def indexes(entry: int, *which: int) -> AckItem:
    """Some indexes of an entry's batch."""
    return (at(entry), sum(1 << index for index in which), SIZES[entry])


def _succeeds(host: Subscription, *requests: AckIndividual | AckCumulative | EndTxnOnSubscription) -> None:
    for request in requests:
        error = host.answer(request)
        promise(error is None, f"{request} succeeds, and was answered {error}")


def _refused(host: Subscription, request: AckIndividual | AckCumulative, why: str) -> None:
    before = (len(host.entries), state_of(host.machine))
    error = host.answer(request)
    promise(error == CONFLICT, f"{why}: TransactionConflict, and was {error}")
    promise(before == (len(host.entries), state_of(host.machine)), f"{why}: a refused ack leaves no trace")


@_check
def commit_acknowledges_and_abort_gives_back(host: Subscription) -> None:
    """Messages that a transaction acked are gone after its commit, and come again after its abort."""
    _succeeds(host, ack(FIRST, whole(0), indexes(1, 0, 2)), ack(SECOND, indexes(1, 1)))
    promise(not {(0, 0), (1, 0), (1, 1), (1, 2)} & host.visible(), "pending messages are delivered to nobody")
    _succeeds(host, abort(SECOND))
    promise(host.redelivered == [(at(1), 0b10)], f"an abort redelivers what its transaction held: {host.redelivered}")
    promise((1, 1) in host.visible(), "an abort frees what its transaction held")
    _succeeds(host, commit(FIRST))
    promise(host.cursor.acked == {(0, 0), (1, 0), (1, 2)}, "a commit acknowledges exactly what its transaction held")


@_check
def second_ack_of_a_message_conflicts(host: Subscription) -> None:
    """Another transaction that comes second is refused, and nothing of its request counts."""
    _succeeds(host, ack(FIRST, whole(0), indexes(1, 0)))
    _refused(host, ack(SECOND, whole(3), whole(0)), "an entry that a transaction holds")
    _refused(host, ack(SECOND, indexes(1, 0, 1)), "an index that a transaction holds")
    _refused(host, ack(SECOND, whole(1)), "a whole batch of which an index is held")
    _succeeds(host, ack(SECOND, whole(2)))
    _refused(host, ack(FIRST, indexes(1, 1), indexes(2, 3)), "beside something new, an index that another transaction holds")
    _succeeds(host, commit(FIRST))
    _refused(host, ack(FIRST._replace(least=3), indexes(2, 3)), "an index of a batch that is held as a whole")
    _refused(host, ack(FIRST._replace(least=3), whole(0)), "an entry that was acknowledged")
    _refused(host, ack(FIRST._replace(least=3), indexes(1, 0)), "an index that was acknowledged")


@_check
def whole_entry_of_which_something_is_settled_conflicts(host: Subscription) -> None:
    """A whole entry names all its messages: with one of them acknowledged, two transactions would commit that one."""
    _succeeds(host, ack(FIRST, indexes(1, 0)), commit(FIRST))
    _refused(host, ack(SECOND, whole(1)), "a whole batch of which an index is committed")
    host.plain_ack([indexes(2, 3)])
    _refused(host, ack(SECOND, whole(2)), "a whole batch of which an index is acknowledged")
    host.store()
    host.crash(len(host.entries), len(host.changes))
    _refused(host, ack(SECOND, whole(1)), "and still when the cursor has stored it")
    _succeeds(host, ack(SECOND, indexes(1, 1, 2, 3)), commit(SECOND))


@_check
def repeated_ack_has_the_first_answer(host: Subscription) -> None:
    """An ack with a key and the items that its transaction took with it succeeds without a record, also after a restart."""
    first, up_to = ack(FIRST, whole(0), indexes(1, 0), key=(7, 1)), ack_up_to(FIRST, indexes(2, 0), key=(7, 2))
    _succeeds(host, first, ack(FIRST, whole(3), key=(8, 1)), up_to)
    for again in range(2):
        before = (len(host.entries), state_of(host.machine))
        _succeeds(host, first, up_to, ack(FIRST, whole(3), key=(8, 1)))
        promise(before == (len(host.entries), state_of(host.machine)), "a repeated ack leaves no trace")
        promise(host.machine.cumulative_position(FIRST) == at(2), "and takes nothing back")
        _refused(host, ack(FIRST, whole(4), key=(7, 1)), "a key of other messages")
        _refused(host, ack(FIRST, indexes(2, 0), key=(7, 2)), "the key of a cumulative ack")
        if not again:
            host.crash(len(host.entries), 0)
    host.plain_ack([whole(0)])
    _succeeds(host, first, commit(FIRST))
    promise(host.cursor.acked == messages_up_to(SIZES, indexes(2, 0)) | {(3, 0)}, "and counts once")
    promise(host.answer(first) == ServerError.NotAllowedError, "a repeat after the end is refused")


@_check
def second_copy_acked_in_its_own_transaction_conflicts(host: Subscription) -> None:
    """Without the key of the first one it is the ack of a second copy: its work would be committed twice."""
    _succeeds(host, ack(FIRST, whole(0), indexes(1, 0, 1), key=(7, 1)), ack(FIRST, whole(2), key=(7, 2)))
    for key in (None, (7, 3), (8, 1)):
        _refused(host, ack(FIRST, whole(0), key=key), "all that its own transaction holds")
        _refused(host, ack(FIRST, whole(0), indexes(1, 0, 1), key=key), "equal items without an equal key")
        _refused(host, ack(FIRST, whole(3), indexes(1, 1, 2), key=key), "beside something new, an index that it holds")
        _refused(host, ack(FIRST, whole(1), key=key), "a whole batch of which it holds an index")
        _refused(host, ack(FIRST, indexes(2, 1), key=key), "an index of a batch that it holds as a whole")
        _refused(host, ack_up_to(FIRST, whole(2), key=key), "a cumulative ack that ends with what it holds")
    host.crash(len(host.entries), 0)
    _refused(host, ack(FIRST, whole(0), indexes(1, 0, 1)), "and still after a restart")
    _succeeds(host, ack_up_to(FIRST, whole(3), key=(7, 9)))
    for key in (None, (7, 10)):
        _refused(host, ack_up_to(FIRST, whole(3), key=key), "a cumulative ack that is not ahead of its own")
        _refused(host, ack_up_to(FIRST, indexes(2, 0), key=key), "a cumulative ack behind its own")
        _refused(host, ack(FIRST, indexes(1, 3), key=key), "an individual ack behind its own cumulative one")
    _succeeds(host, ack(FIRST, whole(4)), commit(FIRST))


@_check
def answer_of_a_repeat_waits_for_the_first_ack(host: Subscription) -> None:
    """Answers of repeats wait until the first ack is durable."""
    host.send(ack(FIRST, whole(0), token="first", key=(7, 1)))  # noqa: S106 - the host's handle of a request
    host.send(ack(FIRST, whole(0), token="again", key=(7, 1)))  # noqa: S106 - the host's handle of a request
    host.send(ack_up_to(FIRST, whole(1), key=(7, 2)))
    host.send(AckCumulative("up to again", FIRST, whole(1), (7, 2)))
    promise(not host.answers, f"nothing is answered before it is durable: {host.answers}")
    host.confirm()
    promise(
        host.answers == {"first": None, "again": None, FIRST: None, "up to again": None},
        f"and then everything is: {host.answers}",
    )


@_check
def batch_with_all_indexes_pending_conflicts(host: Subscription) -> None:
    """An empty rest of a batch is not the absence of a set."""
    _succeeds(host, ack(FIRST, indexes(1, 0, 1)), ack(FIRST, indexes(1, 2, 3)))
    _refused(host, ack(FIRST, indexes(1, 2)), "an index of a batch of which its own transaction holds everything")
    _refused(host, ack(FIRST, whole(1)), "a batch of which its own transaction holds everything")
    _refused(host, ack(SECOND, indexes(1, 2)), "an index of a batch of which everything is pending")
    _refused(host, ack(SECOND, whole(1)), "a batch of which everything is pending")


@_check
def one_transaction_holds_the_cumulative_ack(host: Subscription) -> None:
    """Cumulative acks grow, exclude others, apply at commit together with individual ones, and an abort leaves none."""
    _succeeds(host, ack(FIRST, whole(3)), ack_up_to(FIRST, indexes(1, 0, 1)))
    promise(host.machine.cumulative_position(FIRST) == at(1), "the cumulative ack is told")
    _refused(host, ack_up_to(SECOND, whole(4)), "a cumulative ack while another transaction holds one")
    _refused(host, ack(SECOND, whole(0)), "an individual ack behind another's cumulative ack")
    _succeeds(host, ack(SECOND, indexes(1, 2)))
    _refused(host, ack_up_to(FIRST, whole(1)), "a cumulative ack over what another transaction holds")
    _succeeds(host, abort(SECOND), ack_up_to(FIRST, whole(1)), commit(FIRST))
    promise(host.cursor.acked == messages_up_to(SIZES, whole(1)) | {(3, 0)}, "a commit applies acks of both kinds")
    _refused(host, ack_up_to(SECOND._replace(least=4), whole(1)), "a cumulative ack up to what is acknowledged")
    _succeeds(host, ack_up_to(SECOND._replace(least=4), whole(4)), abort(SECOND._replace(least=4)))
    promise(host.machine.cumulative_position(SECOND._replace(least=4)) is None, "an abort frees the cumulative ack")


@_check
def transaction_that_ended_is_shut_out(host: Subscription) -> None:
    """Unknown, unregistered and ended transactions are refused; a repeat of the end is answered alike."""
    host.participants = {FIRST, SECOND}
    stranger = TxnId(3, 1)
    promise(host.answer(ack(stranger, whole(0))) == ServerError.NotAllowedError, "an ack of an unknown transaction is refused")
    _succeeds(host, ack(FIRST, whole(0)), commit(FIRST), commit(FIRST), commit(SECOND))
    for txn_id in (FIRST, SECOND):
        promise(host.answer(ack(txn_id, whole(3))) == ServerError.NotAllowedError, "an ack after the end is refused")
        late = host.send(Verified(ack(txn_id, whole(3)), registered=True))
        promise(isinstance(late, Refusal), "a coordinator's answer from before the end does not open it again")
    host.crash(len(host.entries), 0)
    promise(host.answer(ack(SECOND, whole(3))) == ServerError.NotAllowedError, "and still is after a restart")


@_check
def open_acks_and_the_last_commit_are_told(host: Subscription) -> None:
    """While an open transaction holds acks its id is told; the last one that was committed with acks is remembered."""

    def told(holder: TxnId | None, last: TxnId | None) -> None:
        for again in (False, True):
            if again:
                host.confirm()
                host.crash(len(host.entries), len(host.changes))
            promise(host.machine.first_holder() == holder, f"{holder} holds acks, and its id is told")
            promise(host.machine.stats().last_committed_txn == last, f"{last} was committed last, and is remembered")

    told(None, None)
    _succeeds(host, ack(SECOND, whole(3)))
    told(SECOND, None)
    _succeeds(host, ack(FIRST, indexes(1, 2)))
    told(FIRST, None)
    _succeeds(host, commit(FIRST))
    told(SECOND, FIRST)
    _succeeds(host, ack_up_to(SECOND, whole(2)), abort(SECOND))
    told(None, FIRST)
    _succeeds(host, commit(TxnId(0, 3)))
    told(None, FIRST)
    _succeeds(host, ack(TxnId(1, 1), whole(4)), ack_up_to(TxnId(0, 4), whole(2)))
    told(TxnId(0, 4), FIRST)
    _succeeds(host, commit(TxnId(1, 1)))
    told(TxnId(0, 4), TxnId(1, 1))


@_check
def low_watermark_aborts_what_is_stale(host: Subscription) -> None:
    """All transactions at or below it, not the one that is ending, and none of another coordinator."""
    stale, other, ending = TxnId(0, 3), TxnId(1, 1), TxnId(0, 9)
    _succeeds(host, ack(ending, whole(0)), ack(stale, indexes(1, 0)), ack(FIRST, indexes(1, 1)), ack(other, whole(3)))
    _succeeds(host, end(ending, TxnAction.COMMIT, 9))
    promise(host.cursor.acked == {(0, 0)}, "the ending transaction ends as it was told")
    promise(host.visible() >= {(1, 0), (1, 1)}, "every stale transaction is aborted")
    promise(
        sorted(host.redelivered) == [(at(1), 0b01), (at(1), 0b10)], f"and what it held comes again, no more: {host.redelivered}"
    )
    promise((3, 0) not in host.visible(), "a low watermark is its coordinator's own")
    promise(host.answer(ack(TxnId(0, 5), whole(4))) == ServerError.NotAllowedError, "an ack below the low watermark is refused")
    _succeeds(host, abort(TxnId(0, 5)))


@_check
def plain_ack_takes_the_message_out(host: Subscription) -> None:
    """Plain acks are not given back by an abort, and survive a crash."""
    _succeeds(host, ack(FIRST, whole(0), whole(1), indexes(2, 1)))
    host.plain_ack([whole(0), indexes(1, 0)])
    host.confirm()
    host.crash(len(host.entries), 0)
    promise(host.cursor.acked == {(0, 0), (1, 0)}, "a plain ack of something pending survives a crash")
    _succeeds(host, abort(FIRST))
    promise(not {(0, 0), (1, 0)} & host.visible(), "an abort does not give back what was acknowledged otherwise")
    promise({(1, 1), (1, 2), (1, 3), (2, 1)} <= host.visible(), "and gives back the rest")


@_check
def reset_frees_what_it_passes(host: Subscription) -> None:
    """A seek forward drops what it passes; a seek back gives committed messages again, also after a crash."""
    _succeeds(host, ack(FIRST, whole(0), whole(3)), ack(SECOND, whole(1)), commit(SECOND))
    host.seek(0)
    host.confirm()
    host.crash(len(host.entries), len(host.changes))
    promise((1, 0) in host.visible(), "a commit before the seek is not applied again")
    promise((3, 0) not in host.visible(), "what lies in front of the cursor goes on being held")
    _succeeds(host, commit(FIRST))
    promise(host.cursor.acked == {(0, 0), (3, 0)}, "and counts at the commit")


@_check
def restart_at_every_record_keeps_what_was_decided(host: Subscription) -> None:
    """With each prefix of the log, and a cursor that stored nothing, the decided acks and no others are there."""
    _succeeds(host, ack(FIRST, whole(0), indexes(1, 3)), commit(FIRST))
    _succeeds(host, ack(SECOND, indexes(1, 0)), ack(SECOND, whole(4)), abort(SECOND), ack_up_to(TxnId(0, 3), indexes(2, 0)))
    _succeeds(host, commit(TxnId(0, 3)))
    entries = list(host.log.entries)
    for kept in range(len(entries) + 1):
        again = Subscription(host.factory, host.sizes)
        again.recover(entries[:kept])
        again.machine.check_invariants()
        wanted = {(0, 0), (1, 3)} if kept >= 2 else set()
        wanted |= messages_up_to(SIZES, indexes(2, 0)) if kept == len(entries) else set()
        promise(again.cursor.acked == wanted, f"with {kept} records {wanted} is acknowledged, and was {again.cursor.acked}")
        copy = again.factory("topic", "subscription", again.cursor)
        for part in again.machine.snapshot():
            copy.restore(part)
        promise(state_of(copy) == state_of(again.machine), "a restored snapshot is the state it was taken of")
