"""For authors of buffer plug-ins: a host in memory, and the suite that every buffer passes.

    from pulsar_txn.rm_producer.testing import TransactionBufferSuite

    class TestMyBuffer(TransactionBufferSuite):
        factory = MyTransactionBuffer

Nothing here needs pytest but the collection of `test_*` methods; see `suite` for what is promised. Beyond that,
`BufferHost` checks at every step: decisions leave no trace, `decode` inverts `encode`, invariants hold, and what
readers were shown is never taken back.
"""

from .entries import Disk, StoredSnapshot, make_entry, read_entry
from .host import BufferHost
from .suite import TransactionBufferSuite

__all__ = ["BufferHost", "Disk", "StoredSnapshot", "TransactionBufferSuite", "make_entry", "read_entry"]
