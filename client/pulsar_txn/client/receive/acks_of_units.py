"""What each open transaction has acknowledged through which consumer.

A message may be delivered to two consumers of one client: the first gave it back, or lost its place, while the program
went on working on its copy. When both copies are acknowledged in one transaction, a broker that answers a repeat like the
first request (as S16 of our guarantees says) cannot tell this from a repeat: the message would be worked on twice in one
transaction. Here the two consumers are known, and the second acknowledgement conflicts.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from pulsar_txn.client.receive.acks import Claim, OpenTransactionAcks
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.wire.ids import Position


class AcksOfUnits:
    """One per client. Forgets a transaction that nobody has any more."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Enlisting, dict[tuple[str, str], list[tuple[OpenTransactionAcks, list[Claim]]]]]
        self._known = WeakKeyDictionary()

    def begin(self, txn: Enlisting, topic: str, subscription: str, acks: OpenTransactionAcks, claims: list[Claim]) -> None:
        """A consumer acknowledges in a transaction for the first time; `claims` are its acknowledgements in it."""
        self._known.setdefault(txn, {}).setdefault((topic, subscription), []).append((acks, claims))

    def held_elsewhere(
        self, txn: Enlisting, topic: str, subscription: str, own: OpenTransactionAcks, place: tuple[Position, int]
    ) -> bool:
        """Whether another consumer of the subscription has acknowledged this message in this transaction."""
        units = self._known.get(txn, {}).get((topic, subscription), ())
        return any(acks is not own and acks.holds_in(place, claims) for acks, claims in units)
