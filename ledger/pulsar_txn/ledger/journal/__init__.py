"""The embedded journal: one folder, one process and its sync helper, everything in one interleaved journal.

store       the provider                             log          handles of logs
writer      groups → frames → disk → confirmations   frame        the form of a group, its entries and records
state       what all records add up to, in memory    checkpoint   the state, written in slices and read back
recovery    from segments to the state               folder       lock, format, mark, and findings
segments    files made ahead, read, held, recycled   reclaim      trim, drop, copy forward
files       the operating system (`sync_helper`: the process that waits for the disk)
check       verification and repair                  backup       copies, and the way back
"""

from __future__ import annotations

from pulsar_txn.ledger.journal.check import check
from pulsar_txn.ledger.journal.folder import Finding
from pulsar_txn.ledger.journal.store import JournalStore

__all__ = ["Finding", "JournalStore", "check"]
