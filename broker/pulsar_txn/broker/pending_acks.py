"""The host of a subscription's pending-ack handle. It is opened with the first acknowledgement in a transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pulsar_txn.ledger.machine import Effect, MoveCursor, Redeliver
from pulsar_txn.ledger.protocols import Cursor, Log
from pulsar_txn.rm_pending_ack.requests import CursorStored, PendingAck, Request, Verified
from pulsar_txn.wire.ids import Participant, Position

from .participant_host import ParticipantHost, Verify
from .turn import Turn


class SubscriptionView(Protocol):
    """What the host asks of its subscription."""

    cursor: Cursor

    def apply_move(self, move: MoveCursor) -> None:
        """Acknowledge what a transaction committed."""

    def release(self, position: Position, indexes: int | None) -> None:
        """Deliver again what a transaction gave back."""


class PendingAckHost(ParticipantHost[Request, Any]):
    """One handle with its redo log."""

    uses_reserve = True

    def __init__(
        self,
        machine: PendingAck,
        log: Log,
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        subscription: SubscriptionView,
        participant: Participant,
        verify: Verify,
    ) -> None:
        super().__init__(
            machine, {machine.logs[0]: log}, turn, on_failed, participant=participant, verify=verify, verified=Verified
        )
        self.handle = machine
        self._subscription = subscription
        self._moves: deque[tuple[int, int]] = deque()

    def perform(self, effect: Effect) -> None:
        """Move the cursor, or deliver again."""
        if type(effect) is MoveCursor:
            self._subscription.apply_move(effect)
            if not self._moves:
                self.turn.defer(self.cursor_moved)
            self._moves.append((self._subscription.cursor.ticket, effect.sequence))
        elif type(effect) is Redeliver:
            for position, indexes in effect.positions:
                self._subscription.release(position, indexes)
        else:
            super().perform(effect)

    def cursor_moved(self) -> None:
        """The cursor's durable state may have moved: tell the handle which of its commits are stored."""
        moves, stored = self._moves, self._subscription.cursor.confirmed_ticket
        sequence = None
        while moves and moves[0][0] <= stored:
            sequence = moves.popleft()[1]
        if sequence is not None and self.ready:
            self.submit(CursorStored(sequence), reserve=True)
