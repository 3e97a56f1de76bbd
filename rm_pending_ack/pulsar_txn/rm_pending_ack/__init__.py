"""The pending-ack handle of a subscription: acknowledgements that wait for their transaction.

It knows positions, batch indexes and transaction ids, and asks a read-only view of the cursor. It must never
know messages, sockets, clocks, or move the cursor itself: that is an effect. Conflicts are decided before
anything is logged, so its redo log holds only acks that count.
"""
