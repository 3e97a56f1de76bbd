"""Host of a subscription's pending acknowledgements: the effects of its handle move the cursor, or deliver again.

Opened with the first acknowledgement in a transaction. A large transaction is carried out some entries in each loop turn;
what comes after it waits, so that the order stays.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.hosts import MachineHost, News
from pulsar_txn.ledger.hosting import Registration
from pulsar_txn.ledger.machine import Effect, MoveCursor, Redeliver
from pulsar_txn.ledger.protocols import LedgerError, Log
from pulsar_txn.rm_pending_ack.requests import CursorStored, PendingAck, Request, Verified

from .dispatcher import Dispatcher

_logger = logging.getLogger(__name__)

AT_ONCE: Final = 512
"""Entries of one transaction that are acknowledged, or given back, in one turn."""


class PendingAckHost(MachineHost[Request, Any]):
    """One handle with its redo log."""

    def __init__(
        self,
        machine: PendingAck,
        log: Log,
        turn: Turn,
        on_news: News,
        *,
        dispatcher: Dispatcher,
        registration: Registration,
    ) -> None:
        super().__init__(machine, {machine.logs[0]: log}, turn, on_news, registration=registration)
        self.handle = machine
        self._dispatcher = dispatcher
        self._moves: deque[tuple[int, int]] = deque()
        self._large: deque[Iterator[None]] = deque()

    @property
    def is_busy(self) -> bool:
        """True if somebody waits for an answer of this host, or a large transaction is still carried out."""
        return bool(self._large) or super().is_busy

    @property
    def moves_entries(self) -> bool:
        """True if a large transaction is still carried out."""
        return bool(self._large)

    def verified(self, request: Any, registered: bool) -> Request:
        """The request with the coordinator's answer."""
        return Verified(request, registered)

    def perform(self, effect: Effect) -> None:
        """Move the cursor, or deliver again: at the end of the turn, in order with the answers, for these are noted as well."""
        self.turn.answer(self._perform, effect, None, "")

    def _perform(self, effect: Effect, _error: None, _message: str) -> None:
        if self.failure is not None:
            return
        try:
            self._settle(effect)
        except Exception as error:
            _logger.exception("effects of %r could not be carried out", self.machine)
            self.fail(error)

    def _settle(self, effect: Effect) -> None:
        if type(effect) is MoveCursor:
            if self._large or len(effect.individual) > AT_ONCE:
                self._divide(self._move(effect))
            else:
                self._dispatcher.apply_move(effect)
                self._moved(effect)
        elif type(effect) is Redeliver:
            if self._dispatcher.releases_one_by_one and (self._large or len(effect.positions) > AT_ONCE):
                self._divide(self._release_many(effect))
            else:
                self._dispatcher.release(effect.positions)
        else:
            super().perform(effect)

    def _moved(self, move: MoveCursor) -> None:
        if not self._moves:
            self.turn.defer(self.cursor_moved)
        self._moves.append((self._dispatcher.cursor.ticket, move.sequence))

    # ---- large transactions, some entries in each turn; what comes after them waits, so that the order stays

    def _move(self, move: MoveCursor) -> Iterator[None]:
        items = iter(move.individual)
        while some := tuple(islice(items, AT_ONCE)):
            self._dispatcher.apply_move(MoveCursor(some, None, move.sequence))
            yield
        if move.cumulative is not None:
            self._dispatcher.apply_move(MoveCursor((), move.cumulative, move.sequence))
        self._moved(move)

    def _release_many(self, given_back: Redeliver) -> Iterator[None]:
        positions = iter(given_back.positions)
        while some := tuple(islice(positions, AT_ONCE)):
            self._dispatcher.release(some)
            yield

    def _divide(self, work: Iterator[None]) -> None:
        self._large.append(work)
        if len(self._large) == 1:
            self.turn.defer(self._go_on)

    def _go_on(self) -> None:
        if self.failure is not None:
            self._large.clear()
        if not self._large:
            return
        try:
            next(self._large[0])
        except StopIteration:
            self._large.popleft()
        except LedgerError as error:
            self._large.clear()
            self.fail(error)
        if self._large:
            self.turn.defer(self._go_on)

    def drop_moves(self) -> None:
        """The cursor is about to be reset: what transactions settled or gave back before is not carried out any more."""
        self._large.clear()

    def cursor_moved(self) -> None:
        """The cursor's durable state may have moved: tell the handle which of its commits are stored."""
        moves, stored = self._moves, self._dispatcher.cursor.confirmed_ticket
        sequence = None
        while moves and moves[0][0] <= stored:
            sequence = moves.popleft()[1]
        if sequence is not None and self.ready:
            self.submit(CursorStored(sequence), reserve=True)
