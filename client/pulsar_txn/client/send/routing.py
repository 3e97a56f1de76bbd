"""Choice of the partition of a message."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from pulsar_txn.wire.hashing import boost_string_hash, java_string_hash, murmur3_32

Router: TypeAlias = Callable[[str | None, bytes], int]
"""`router(key, payload)` returns a partition number. A custom one is given the number of partitions in its closure."""


class RoutingMode(enum.Enum):
    """Choice of a partition for messages without a key; a key's hash decides for all others."""

    ROUND_ROBIN = "round_robin"
    """One partition after the other; with batching, a batch each."""
    SINGLE_PARTITION = "single_partition"
    """All to one partition, chosen at random when the producer is made."""


RoutingModeName: TypeAlias = Literal["round_robin", "single_partition"]
"""Names of RoutingMode that `create_producer` takes as well."""


class HashingScheme(enum.Enum):
    """The hash of keys; all producers of a topic must use the same one, or a key lives in two partitions.

    JAVA_STRING is the default of Java clients and of this one, BOOST that of C++ clients and so of the official Python one.
    """

    JAVA_STRING = "java_string"
    MURMUR3 = "murmur3"
    BOOST = "boost"


HashingSchemeName: TypeAlias = Literal["java_string", "murmur3", "boost"]
"""Names of HashingScheme that `create_producer` takes as well."""


_HASHES: Final[Mapping[HashingScheme, Callable[[str], int]]] = {
    HashingScheme.JAVA_STRING: java_string_hash,
    HashingScheme.MURMUR3: lambda key: murmur3_32(key.encode()),
    HashingScheme.BOOST: lambda key: boost_string_hash(key.encode()),
}


def key_partition(scheme: HashingScheme, key: str, partitions: int) -> int:
    """The partition of a key."""
    return _HASHES[scheme](key) % partitions


class RoundRobin:
    """Walks over the partitions; with batching it stays on one until a batch is full or its delay is over."""

    def __init__(
        self, partitions: int, start: int, scheme: HashingScheme, *, messages: int, delay: float, clock: Callable[[], float]
    ) -> None:
        self._partitions = partitions
        self._current = start % partitions
        self._scheme = scheme
        self._messages = messages
        self._delay = delay
        self._clock = clock
        self._left = messages
        self._until = clock() + delay

    def __call__(self, key: str | None, _payload: bytes) -> int:
        """The partition of the key, or else the current one of the walk."""
        if key is not None:
            return key_partition(self._scheme, key, self._partitions)
        if self._left <= 0 or self._clock() >= self._until:
            self._current = (self._current + 1) % self._partitions
            self._left = self._messages
            self._until = self._clock() + self._delay
        self._left -= 1
        return self._current


class SinglePartition:
    """All messages without a key to one partition."""

    def __init__(self, partitions: int, partition: int, scheme: HashingScheme) -> None:
        self._partitions = partitions
        self._partition = partition % partitions
        self._scheme = scheme

    def __call__(self, key: str | None, _payload: bytes) -> int:
        """The partition of the key, or else the chosen one."""
        return self._partition if key is None else key_partition(self._scheme, key, self._partitions)
