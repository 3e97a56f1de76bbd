"""The client: connections, producers, consumers, readers and transactions, asyncio first, with a sync twin.

It knows the wire and nothing else of ours. It must never know the broker, a ledger or Spark; and clock,
randomness, sockets and timers reach it only through `runtime`.
"""
