"""A process that leads a log in a topic, and does what its standard input says; run as a program.

    log_holder.py SERVICE_URL PREFIX LEASE_MS

Lines in: `append TEXT`, `fresh`, `close`. Lines out: `leads EPOCH`, `confirmed N` after each append, `lost ERROR`,
`refused ERROR`, `fresh YES|NO`.
"""

from __future__ import annotations

import asyncio
import sys

from topic_stores import TopicStores

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.ids import Position


class Listener:
    """Says what becomes of the log."""

    def log_confirmed(self, position: Position) -> None:
        print("confirmed", position[1], flush=True)

    def log_failed(self, error: LedgerError) -> None:
        print("lost", type(error).__name__, flush=True)


async def main(url: str, prefix: str, lease_ms: str) -> None:
    stores = TopicStores(url, lease_ms=int(lease_ms))
    stores.prefix = prefix
    store = await stores.new(advertised="pulsar://the-other-process")
    log = await store.open("a/log")
    log.listen(Listener())
    print("leads", log.epoch, flush=True)
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    while (line := await lines.get()).strip() not in ("close", ""):
        word, _, text = line.strip().partition(" ")
        try:
            if word == "append":
                log.append(text.encode())
            else:
                print("fresh", "YES" if log.fresh else "NO", flush=True)
        except LedgerError as error:
            print("refused", type(error).__name__, flush=True)
    await stores.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
