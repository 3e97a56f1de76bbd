"""The blocking client: the same names without `await`, for scripts, notebooks and Spark executors.

    with Client("pulsar://localhost:6650") as client:
        producer = client.create_producer("out")
        with client.transaction() as txn:
            producer.send(b"x", txn=txn)

One private thread with an event loop does the work, so that keep-alive, receipts and receiving go on while the caller
computes; none of the program's own code runs there. Threads may share the objects. The thread starts with the first use:
a client that was used before a fork is dead in the child, one that was only made works there.
"""

from pulsar_txn.client.sync.classes import *  # noqa: F403 - its `__all__` lists the blocking classes
from pulsar_txn.client.sync.classes import __all__ as __all__
