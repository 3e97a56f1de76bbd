"""Input of transactions, which joins when it is received: the commit acknowledges it, and after an abort it comes again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pulsar_txn.client.errors import ConnectionLost
from pulsar_txn.client.receive.inbox import Inbox
from pulsar_txn.client.receive.key_order import KeyOrder
from pulsar_txn.client.receive.message import Message, runs
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer
from pulsar_txn.client.receive.partitions import Partitions
from pulsar_txn.client.state.acknowledgements import Share
from pulsar_txn.client.state.owners import Hold, bit_of
from pulsar_txn.client.txn.unit import Unit


class Joined:
    """Input of one transaction from one consumer; the transaction calls `acknowledge` and `bring_back`."""

    def __init__(self, txn: Unit, partitions: Partitions, keys: KeyOrder | None) -> None:
        self.is_acknowledging = False
        """True once the commit has begun."""
        self.keeps = False
        """True if the messages stay here after an abort, unless one of them was acknowledged."""
        self.are_kept = False
        """True if they stayed; they do not when a message has left the transaction before."""
        self.size = 0
        """The number of messages that joined."""
        self._txn = weakref.ref(txn)  # a transaction that nobody has any more is to be collected
        self._partitions = partitions
        self._keys = keys
        self._shares: dict[PartitionConsumer, Share] = {}

    def add(
        self, messages: Iterable[Message[Any]], keepers: Mapping[PartitionConsumer, Hold] | None = None
    ) -> list[Message[Any]]:
        """These were received in the transaction; without second copies of what somebody here has already."""
        txn = self._txn()
        if txn is None:
            return []  # nobody asks for them any more
        self.keeps = keepers is not None
        added: list[Message[Any]] = []
        for run in runs(messages):
            part = self._partitions.of_message(run[0])
            if part is None:
                continue  # its topic was left, so nobody can acknowledge it
            share = self._shares.get(part)
            if share is None:
                share = self._shares[part] = part.share(txn)
            bits = part.join(share, run, None if keepers is None else keepers.get(part))
            for message in run:
                bit = bit_of(message.index)
                if bits & bit:
                    bits &= ~bit
                    added.append(message)
        self.size += len(added)
        return added

    def acknowledge(self) -> None:
        """The commit begins: acknowledge everything that joined and is not acknowledged yet. Raises what prevents that."""
        self.is_acknowledging = True
        txn = self._txn()
        if txn is not None:
            for part, share in self._shares.items():
                if share.held.entries and part not in self._partitions:
                    raise ConnectionLost(
                        f"{part.topic} is not received from any more, so no transaction can acknowledge its messages",
                        hint="run the unit again, without its messages",
                    )
                part.acknowledge_rest(share, txn)

    def bring_back(self) -> None:
        """The transaction cannot commit any more."""
        left = self._txn()
        seconds = None if left is None else left.remaining
        acknowledged = self.is_acknowledging or any(share.requests for share in self._shares.values())
        self.are_kept = self.keeps and not acknowledged and self._held() == self.size
        if left is not None and self._keys is not None:
            self._keys.come_again(left, seconds)
        for part, share in self._shares.items():
            part.bring_back(share, seconds, keep=self.are_kept)

    def _held(self) -> int:
        """The number of messages that have joined and not left."""
        return sum(bits.bit_count() for share in self._shares.values() for bits in share.held.entries.values())


class Inputs:
    """Inputs of open transactions from one consumer."""

    def __init__(self, partitions: Partitions, inbox: Inbox[Any]) -> None:
        self._partitions = partitions
        self._inbox = inbox
        self._of: WeakKeyDictionary[Unit, Joined] = WeakKeyDictionary()

    def of(self, txn: Unit) -> Joined:
        """The input of a transaction."""
        joined = self._of.get(txn)
        if joined is None:
            joined = self._of[txn] = Joined(txn, self._partitions, self._inbox.keys)
        return joined
