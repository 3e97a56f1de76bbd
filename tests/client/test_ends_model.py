"""Whatever order ends come in, from here and from others, what the program is told is what the coordinator has decided.

The coordinator is a model with four outcomes of a request: carried out, never sent, lost on the way, answered into the void.
Others end the transaction as well: its timeout, members of its check group, whoever has its token.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Any

from fake_broker import bare_core
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client import TransactionState
from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    InvalidTransactionStatus,
    OperationTimeout,
    PulsarError,
    TransactionAborted,
    UnknownError,
)
from pulsar_txn.client.state.transaction import TransactionOptions
from pulsar_txn.client.transactions import PreparedToken
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

CORE, ID, TOPIC = bare_core(), TxnId(3, 42), "persistent://public/default/t"
OPEN, PREPARED, COMMITTED, ABORTED = "OPEN", "PREPARED", "COMMITTED", "ABORTED"


class Fate(enum.Enum):
    """What becomes of one request."""

    DONE = enum.auto()
    NEVER_SENT = enum.auto()
    LOST = enum.auto()
    UNANSWERED = enum.auto()


class Coordinator:
    """One transaction as its coordinator has it; it keeps outcomes. `fates` are those of the next requests."""

    registers_first = False

    def __init__(self) -> None:
        self.status: str | None = None
        self.token: PreparedToken | None = None
        self.fates: list[Fate] = []
        self.commits_asked = 0
        self.closing = False
        self.asked_while_closing: list[TxnAction] = []

    async def new_txn(self, _timeout_ms: int, **_more: Any) -> TxnId:
        self.status = OPEN
        return ID

    async def add_partitions(self, *_args: Any, **_more: Any) -> None:
        """Nothing to do."""

    may_be_fenced = False

    async def needs_checks(self, *_args: Any) -> None:
        """It knows them."""

    async def end_txn(self, _txn_id: TxnId, action: TxnAction, *, tally: Any, prepared: Any, **_more: Any) -> None:
        assert prepared is None or prepared == self.token or self.status != PREPARED
        if self.closing:
            self.asked_while_closing.append(action)
        self.commits_asked += action is TxnAction.COMMIT
        await self._meet(tally, lambda: self._end(COMMITTED if action is TxnAction.COMMIT else ABORTED))

    async def prepare_txn(self, token: PreparedToken, *, tally: Any, **_more: Any) -> None:
        def prepare() -> None:
            if self.status == OPEN:
                self.status, self.token = PREPARED, token
            elif self.status != PREPARED or self.token != token:
                raise _refusal(self.status)

        await self._meet(tally, prepare)

    async def _meet(self, tally: Any, carry_out: Any) -> None:
        fate = self.fates.pop(0) if self.fates else Fate.DONE
        await asyncio.sleep(0)
        if fate is Fate.NEVER_SENT:
            raise OperationTimeout("no connection")
        tally.sent += 1
        if fate is Fate.LOST:
            raise ConnectionLost("lost", maybe_processed=True)
        try:
            carry_out()
        except PulsarError:
            if fate is Fate.DONE:
                raise
        if fate is Fate.UNANSWERED:
            raise ConnectionLost("no answer", maybe_processed=True)

    def _end(self, outcome: str) -> None:
        if self.status in (OPEN, PREPARED):
            self.status = outcome
        elif self.status != outcome:
            raise _refusal(self.status)

    def others(self, act: str, *, grouped: bool) -> None:
        """Somebody else ends it, who may."""
        if act == "timeout" and self.status == OPEN:
            self.status = ABORTED
        elif self.status == PREPARED or (grouped and self.status == OPEN):
            self.status = {"commit": COMMITTED, "abort": ABORTED}.get(act, self.status)


def _refusal(status: str | None) -> InvalidTransactionStatus:
    error = InvalidTransactionStatus(str(status))
    error.definite = True
    return error


class Producer:
    """Whose sends are flushed at once."""

    def flush_nowait(self) -> None:
        """Nothing waits."""

    def count_sends(self, _txn: object) -> None:
        """All were counted."""


PROGRAM = ("commit", "abort", "prepare", "leave", "resolve", "send", "failing send", "close")
OTHERS = ("others commit", "others abort", "others timeout")


class Play:
    """One transaction from its begin to its end, and what was said of it."""

    def __init__(self, *, grouped: bool) -> None:
        self.coordinator = Coordinator()
        self.grouped = grouped
        options = TransactionOptions(timeout=3600, checked=Checked("g") if grouped else None)
        self.unit = Unit(CORE, self.coordinator, options)
        self.txn = AsyncTransaction(self.unit)
        self.has_failed = False
        self.told_aborted = False
        self.decided_here = False

    async def act(self, what: str, fates: Sequence[Fate]) -> None:
        """One step of the program or of others."""
        if what in OTHERS:
            self.coordinator.others(what.removeprefix("others "), grouped=self.grouped)
            return
        self.coordinator.fates = list(fates)
        commits_before = self.coordinator.commits_asked
        try:
            await self._step(what)
        except TransactionAborted:
            self.told_aborted = True
        except PulsarError:
            pass
        if self.has_failed:
            assert self.coordinator.commits_asked == commits_before, "a part of a unit was to be committed"
        self.look()

    async def _step(self, what: str) -> None:
        txn, unit = self.txn, self.unit
        match what:
            case "commit":
                await txn.commit()
            case "abort":
                await txn.abort()
            case "prepare":
                token = await txn.prepare()
                assert token == self.coordinator.token
                assert txn.state is TransactionState.PREPARED
            case "leave":
                await txn.leave_to_check()
            case "resolve":
                await txn.resolve()
            case "send" | "failing send":
                enlisted = unit.enlist_send(CORE, TOPIC, 1, 1, Producer())
                if isinstance(enlisted, asyncio.Future):
                    await enlisted
                failed = what != "send"
                self.has_failed |= failed
                unit.send_finished(TOPIC, 1, UnknownError("disk") if failed else None)
            case _:
                before = txn.state
                self.coordinator.closing = True
                await unit.close(AlreadyClosed("the client was closed"), 5)
                self.coordinator.closing = False
                if before is TransactionState.PREPARED:
                    assert self.coordinator.asked_while_closing == []
                assert TxnAction.COMMIT not in self.coordinator.asked_while_closing

    def look(self) -> None:
        """What the handle shows is true."""
        match self.txn.state:
            case TransactionState.COMMITTED:
                assert self.coordinator.status in (COMMITTED, None)
            case TransactionState.ABORTED:
                assert self.coordinator.status in (ABORTED, None)

    def end(self, act: str) -> None:
        """Nobody does anything more: the group decides, or the timeout."""
        self.coordinator.others(act, grouped=self.grouped)
        self.coordinator.others("timeout", grouped=self.grouped)
        if self.told_aborted:
            assert self.coordinator.status in (ABORTED, None), "told that it was aborted, and it was committed"
        self.look()


STEPS = st.lists(
    st.tuples(st.sampled_from(PROGRAM + OTHERS), st.lists(st.sampled_from(Fate), max_size=2)), min_size=1, max_size=8
)


@given(STEPS, st.booleans(), st.sampled_from(["commit", "abort"]))
def test_what_the_program_is_told_is_what_was_decided(steps: list[tuple[str, list[Fate]]], grouped: bool, last: str) -> None:
    async def play() -> None:
        made = Play(grouped=grouped)
        if steps[0][0] != "commit":  # else also a transaction without an id
            await made.unit.open()
        for what, fates in steps:
            await made.act(what, fates)
        made.end(last)

    asyncio.run(play())
