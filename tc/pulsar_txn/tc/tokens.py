"""The tokens of transactions that were prepared and have ended, so that a repeat of such an end is answered like the first one.

Whoever shows the token of a PREPARE may end the transaction, also somebody whom the window of outcomes would tell nothing. When
the answer to that end is lost, its repeat shows the token again. Tokens are therefore kept as long as the outcome is known, at
most `MAX_KEPT` of them; the oldest ones are forgotten first.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Final

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.tc.outcomes import NO_OUTCOME, OutcomeWindow
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot

MAX_KEPT: Final = 65_536

_FORGOTTEN_PER_END: Final = 4


class EndedTokens:
    """By the number of the transaction, in the order of their ends. `outcomes`: what is remembered of them."""

    def __init__(self, outcomes: OutcomeWindow) -> None:
        self.kept: OrderedMap[int, bytes] = OrderedMap()
        self._outcomes = outcomes

    def __len__(self) -> int:
        return len(self.kept)

    def ended(self, least: int, token: bytes) -> None:
        """A prepared transaction has ended. A few old ones are forgotten with each."""
        self.kept[least] = token
        for _ in range(_FORGOTTEN_PER_END):
            oldest = self.kept.first()
            if oldest is None or (len(self.kept) <= MAX_KEPT and self._outcomes.lookup(oldest[0])[0] != NO_OUTCOME):
                return
            del self.kept[oldest[0]]

    def opens(self, least: int, token: bytes) -> bool:
        """True if this is the token of that transaction."""
        kept = self.kept.get(least)
        return kept is not None and is_same(kept, token)

    def elements(self) -> Iterator[tuple[str, CoordinatorSnapshot.EndedToken]]:
        """The tokens of this moment, each with the name of its field in a snapshot."""
        groups = self.kept.moment().groups()
        element = CoordinatorSnapshot.EndedToken
        return (("ended_tokens", element(least_bits=least, token=token)) for group in groups for least, token in group)

    def restore(self, part: CoordinatorSnapshot) -> None:
        """Take over the tokens of a slice."""
        for each in part.ended_tokens:
            self.kept[each.least_bits] = each.token


def is_same(one: bytes, other: bytes) -> bool:
    """True if two tokens are equal; the time it takes tells nothing about where they differ."""
    return hmac.compare_digest(one, other)
