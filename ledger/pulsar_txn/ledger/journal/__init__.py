"""The embedded journal: one folder, one process and its sync helper, everything in one interleaved journal.

store     the provider                      writer     groups → frames → disk → confirmations
log       handles of logs                   segments   files made ahead of need, and recycled
frame     the form of a group          recovery   from segments to the state they add up to
scan      the frames of a segment           findings   what is wrong with a journal
mark      which segment was begun last
records   everything that is not an entry   reclaim    trim, drop, copy forward
index     where entries are                 files      the file operations layer
reader    entries, checksums checked        syncer     the part that waits for the disk (`sync_helper`: its process)
"""

from __future__ import annotations

from pulsar_txn.ledger.journal.check import check
from pulsar_txn.ledger.journal.findings import Finding
from pulsar_txn.ledger.journal.store import JournalStore

__all__ = ["Finding", "JournalStore", "check"]
