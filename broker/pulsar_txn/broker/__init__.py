"""The host of the plug-ins: a small broker that speaks the Pulsar binary protocol to any official client.

It knows the five rooms below it (wire, ledger, tc, rm_producer, rm_pending_ack) and how to bring their machines,
logs and connections together. It must never know the client or Spark; and clock, randomness, sockets and timers
reach it only through `runtime`.
"""
