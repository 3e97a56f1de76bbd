"""Retention of the acknowledged entries of a topic (Pulsar's rule: whole ledgers, when every durable subscription is through).

Our logs have no ledgers that roll, so a topic cuts itself in its mind: a cut is made after so many entries, bytes or minutes
(Pulsar's `managedLedger…` keys), and only up to a cut anything is trimmed. So a reader that comes a little later still finds
what is acknowledged but is after the last cut, as on Pulsar.
"""

from __future__ import annotations

from collections import deque

from pulsar_txn.broker.base.runtime import Clock
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.ledger.protocols import Log
from pulsar_txn.wire.ids import EARLIEST, Position


class Retention:
    """The cuts of one topic, oldest first: (last entry before the cut, when it was made, bytes between it and the last one)."""

    def __init__(self, log: Log, config: BrokerConfig, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._max_entries = config.managed_ledger_max_entries_per_ledger
        self._max_bytes = config.managed_ledger_max_size_per_ledger_mbytes << 20
        self._max_age_ms = config.managed_ledger_max_ledger_rollover_time_minutes * 60_000
        minutes, megabytes = config.default_retention_time_in_minutes, config.default_retention_size_in_mb
        self._keep_ms = minutes * 60_000 if minutes >= 0 else -1
        self._keep_bytes = megabytes << 20 if megabytes >= 0 else -1
        self._cuts: deque[tuple[Position, int, int]] = deque()
        self._last_cut: Position = EARLIEST
        self._cut_at_ms = 0
        self._bytes_at_cut = 0
        self._countdown = 0

    def opened(self, now_ms: int) -> None:
        """A topic that is opened starts with a cut, as Pulsar starts a ledger; what it has stored is cut as often as before."""
        stats, first = self._log.stats(), self._log.first
        self._cuts.clear()  # one that was made during recovery would be the only one
        self._last_cut, self._bytes_at_cut = EARLIEST, 0
        if first is not None:
            pieces = max(-(-stats.entries // self._max_entries), -(-stats.bytes // self._max_bytes))
            pieces = min(pieces, stats.entries)
            for piece in range(1, pieces):
                self._last_cut = (first[0], first[1] + stats.entries * piece // pieces - 1)
                self._cuts.append((self._last_cut, now_ms, stats.bytes // pieces))
                self._bytes_at_cut += stats.bytes // pieces
        self._cut(now_ms)

    def log_moved(self, *_: object) -> None:
        """See `LogWatcher`; looks at the log every 256 times only."""
        self._countdown -= 1
        if self._countdown <= 0:
            self._countdown = 256
            self._cut_if_due(self._clock.now_ms())

    def _cut_if_due(self, now_ms: int) -> None:
        stats = self._log.stats()
        entries = self._log.entries_between(self._last_cut, stats.last_confirmed)
        due = entries >= self._max_entries or stats.bytes - self._bytes_at_cut >= self._max_bytes
        if due or (entries and now_ms - self._cut_at_ms >= self._max_age_ms):
            self._cut(now_ms)

    def _cut(self, now_ms: int) -> None:
        stats = self._log.stats()
        if stats.last_confirmed > self._last_cut and stats.entries:
            self._cuts.append((stats.last_confirmed, now_ms, max(0, stats.bytes - self._bytes_at_cut)))
        self._last_cut, self._cut_at_ms, self._bytes_at_cut = stats.last_confirmed, now_ms, stats.bytes

    def is_due(self, now_ms: int, acknowledged: Position) -> bool:
        """True if `trim` would trim something."""
        self._cut_if_due(now_ms)
        return self._expired(now_ms, acknowledged) > 0

    def is_settled(self, now_ms: int, acknowledged: Position) -> bool:
        """True if nothing more goes before somebody publishes or acknowledges; asked while nobody does.

        Makes a cut when that lets something go: the topic is to be closed, and it would make one when it is opened again.
        """
        first = self._log.first
        if first is None or acknowledged < first or self._keep_ms < 0 or self._keep_bytes < 0:
            return True
        if self._keep_ms:
            return False  # what is kept for a time goes when it is over
        self._cut(now_ms)
        return not self._expired(now_ms, acknowledged)

    def trim(self, now_ms: int, acknowledged: Position) -> Position | None:
        """Trim up to the newest cut that everybody is through with and that retention lets go; returns where, or None."""
        upto = None
        for _ in range(self._expired(now_ms, acknowledged)):
            upto, _, size = self._cuts.popleft()
            self._bytes_at_cut -= size
        if upto is None:
            return None
        before = self._log.next_position(upto)
        self._log.trim(before)
        return before

    def _expired(self, now_ms: int, acknowledged: Position) -> int:
        """The number of old cuts that may go: too old, or more is kept than retention asks for (0 and 0: nothing)."""
        kept = sum(size for position, _, size in self._cuts if position <= acknowledged)
        count = 0
        for position, made_ms, size in self._cuts:
            by_age = self._keep_ms >= 0 and now_ms - made_ms >= self._keep_ms
            by_size = self._keep_bytes >= 0 and kept > self._keep_bytes
            expired = by_size if not self._keep_ms and self._keep_bytes else by_age or by_size
            if position > acknowledged or not expired:
                break
            kept -= size
            count += 1
        return count
