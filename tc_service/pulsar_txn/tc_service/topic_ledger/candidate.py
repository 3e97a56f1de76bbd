"""An instance that wants to lead a log: it waits for its turn, claims the log, and reads it up to its CLAIM.

While it waits it reads the topic. So it knows who leads, hears the leader's heartbeats, and has little left to read when its
turn comes. The broker lets it in when the leader's connection has gone. When the leader has written nothing for a whole lease,
the candidate sends it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import attrs

from pulsar_txn.client.errors import AuthorizationError, PulsarError
from pulsar_txn.ledger.limits import Pressure
from pulsar_txn.ledger.protocols import LeaseLost, LogDamaged
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire.ids import Position

from .frames import Frame, Kind, LogFold, Record, encode
from .topic import (
    EXCLUSIVE_WITH_FENCING,
    WAIT_FOR_EXCLUSIVE,
    LogSubscription,
    LogTopicRefused,
    Receipt,
    Tail,
    Writer,
    level_of,
    pause_seconds,
)

logger = logging.getLogger("pulsar_txn.tc_service")

_LOOKS_PER_LEASE: Final = 8
_SPREAD: Final = 0.3
_AFTER_MOVE_SECONDS: Final = 0.5
"""A topic that has moved is its leader's for so long: it comes back by itself."""


@attrs.frozen
class ClaimedLog:
    """A log that this instance leads, read up to its CLAIM. `at`: when the CLAIM was sent; `news`: of writer and tail."""

    fold: LogFold
    writer: Writer
    tail: Tail
    news: asyncio.Event
    subscription: LogSubscription
    at: float

    @property
    def is_lost(self) -> bool:
        """True if somebody else leads it by now."""
        return self.writer.lost is not None or self.fold.producer != self.writer.name

    async def give_up(self) -> None:
        """Leave it to others."""
        await self.writer.close()
        await self.tail.close()


@attrs.frozen
class StoreContext:
    """State that all logs of a store share."""

    brokers: Brokers
    lease_seconds: float
    pressure: Pressure


class Candidate:
    """Candidate for the lead of one log. Call `claim()` once."""

    def __init__(self, context: StoreContext, name: str, ledger_id: int, topic: str) -> None:
        self.fold = LogFold(name, ledger_id)
        self.name = name
        self._context = context
        self._topic = topic
        self._subscription = LogSubscription(context.brokers, topic)
        self._tail: Tail
        self._news = asyncio.Event()
        self._heard = 0

    @property
    def leader(self) -> str | None:
        """The address of the leader, as far as this instance has read."""
        return self.fold.leader

    async def claim(self, advertised: str) -> ClaimedLog:
        """Return once this instance leads the log, however long that takes. If cancelled: nothing is left behind.

        Raises LogTopicRefused, LogDamaged, StoreTooNew.
        """
        mark = await self._make()
        self._tail = Tail(self._context.brokers, self._topic, mark, self._news)
        self._tail.start()
        try:
            return await self._claim(mark, advertised)
        except BaseException:
            await self._tail.close()
            raise

    async def _claim(self, mark: Position, advertised: str) -> ClaimedLog:
        failures = 0
        while True:
            writer = self._writer()
            try:
                at = await self._lead(writer, advertised)
                self._check(mark)
                return ClaimedLog(self.fold, writer, self._tail, self._news, self._subscription, at)
            except (PulsarError, LeaseLost) as error:
                await writer.close()
                self._check_final(error)
                logger.log(level_of(failures), "log %r is not led yet: %s", self.name, error)
            except BaseException:
                await writer.close()
                raise
            await asyncio.sleep(pause_seconds(failures))
            failures += 1

    async def _make(self) -> Position:
        failures = 0
        while True:
            try:
                return await self._subscription.make()
            except PulsarError as error:
                self._check_final(error)
                logger.log(level_of(failures), "%s does not exist yet: %s", self._topic, error)
            await asyncio.sleep(pause_seconds(failures))
            failures += 1

    def _check_final(self, error: Exception) -> None:
        if isinstance(error, AuthorizationError):
            raise LogTopicRefused(
                f"this role may not produce to and consume from {self._topic} ({error}); the role in superUserRoles may"
            ) from error

    def _check(self, mark: Position) -> None:
        fold = self.fold
        if fold.next_entry is None and mark[1] >= 0:
            lost = f"everything up to message {mark} was acknowledged, and nothing after it says where the log is"
            raise LogDamaged(self.name, None, lost)
        fold.check_whole()

    # ---- reading

    async def _hear(self) -> None:
        """Wait for news, and fold what has come. Raises what ends the tail, and as `LogFold.take`."""
        await self._news.wait()
        self._read()

    def _read(self) -> None:
        """Fold what has come. Raises as `_hear`."""
        self._news.clear()
        tail = self._tail
        while (message := tail.next_message()) is not None:
            self._heard += self.fold.take(*message)
        if tail.failure is not None:
            raise tail.failure

    # ---- becoming the leader

    def _writer(self) -> Writer:
        brokers = self._context.brokers
        return Writer(brokers, self._topic, f"pulsar-txn-log-{int(brokers.runtime.random() * 2**48):012x}", self._news)

    async def _lead(self, writer: Writer, advertised: str) -> float:
        """Become the producer, write the CLAIM, read up to it; when the CLAIM was sent."""
        await self._take_turn(writer)
        fold, tail = self.fold, self._tail
        claim = Frame(writer.epoch, 0, 0, 0, 0, (Record(Kind.CLAIM, 0, advertised.encode()),))
        at = self._context.brokers.runtime.monotonic()
        writer.send(encode(claim))
        receipt: Receipt | None = None
        while writer.lost is None:
            if receipt is None:
                receipt = writer.next_receipt()
            written_at = None if receipt is None else receipt.where
            if receipt is not None and (fold.producer == writer.name or (written_at is not None and tail.last >= written_at)):
                break
            await self._hear()
        if writer.lost is not None:
            raise writer.lost
        if fold.producer != writer.name:
            raise LeaseLost(f"log {self.name!r}: epoch {writer.epoch} was claimed after epoch {fold.epoch}")
        return at

    async def _take_turn(self, writer: Writer) -> None:
        """Wait in the broker's queue, and watch the leader meanwhile. Raises PulsarError."""
        while True:
            turn = asyncio.ensure_future(writer.attach(WAIT_FOR_EXCLUSIVE))
            watch = asyncio.ensure_future(self._leader_is_silent())
            try:
                await asyncio.wait([turn, watch], return_when=asyncio.FIRST_COMPLETED)
                if turn.done():
                    turn.result()
                    return
                is_silent = watch.result()
            finally:
                for task in (turn, watch):
                    task.cancel()
                await asyncio.gather(turn, watch, return_exceptions=True)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                return  # its turn has come meanwhile
            if is_silent:
                logger.warning("the leader of log %r has been silent for a lease; this process takes its place", self.name)
                await writer.attach(EXCLUSIVE_WITH_FENCING)
                return
            await asyncio.sleep(_AFTER_MOVE_SECONDS)

    async def _leader_is_silent(self) -> bool:
        """True after a whole lease without a frame; False when the topic has moved, and with it the queue that we wait in.

        Looks are counted, not seconds: a process that was stopped itself has heard nothing, and knows nothing.
        """
        tail = self._tail
        spread = 1 + _SPREAD * self._context.brokers.runtime.random()  # those who wait had better not act at one moment
        pause = spread * self._context.lease_seconds / _LOOKS_PER_LEASE
        silent, heard, attachments = 0, self._heard, tail.attachments
        while silent < _LOOKS_PER_LEASE:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    while True:
                        await self._hear()
            self._read()
            if tail.attachments != attachments and attachments:
                return False
            if self._heard == heard and tail.is_attached:
                silent += 1
            else:
                silent = 0
            heard, attachments = self._heard, tail.attachments
        return True
