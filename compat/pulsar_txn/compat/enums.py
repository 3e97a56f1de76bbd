"""Enumerations with the official names and values, and what they are called in our client."""

from __future__ import annotations

import enum
from typing import Any, Final, cast

from pulsar_txn import client as ours


class _Named(enum.IntEnum):
    """Its text is its name, as with the official ones, and not the number."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ConsumerType(_Named):
    """Ways in which a subscription divides its messages."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(_Named):
    """Places where a new subscription starts."""

    Latest = 0
    Earliest = 1


class CompressionType(_Named):
    """Compressions of payloads."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class BatchingType(_Named):
    """Rules for which messages share a batch."""

    Default = 0
    KeyBased = 1


class PartitionsRoutingMode(_Named):
    """Rules for the partition of messages without a key."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class ProducerAccessMode(_Named):
    """Rules for who may produce beside a producer."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class KeySharedMode(_Named):
    """Ways in which Key_Shared subscriptions divide keys."""

    AutoSplit = 0
    Sticky = 1


class RegexSubscriptionMode(_Named):
    """Sets of topics with which a pattern is compared."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ConsumerCryptoFailureAction(_Named):
    """Fates of a message that cannot be decrypted."""

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class LoggerLevel(_Named):
    """Levels of the official client's own loggers; no effect here."""

    Debug = 0
    Info = 1
    Warn = 2
    Error = 3


OUR_BATCHING: Final = {
    BatchingType.Default: ours.BatchingType.DEFAULT,
    BatchingType.KeyBased: ours.BatchingType.KEY_BASED,
}

_NAMES: Final = (
    "Ok UnknownError InvalidConfiguration Timeout LookupError ConnectError ReadError AuthenticationError AuthorizationError "
    "ErrorGettingAuthenticationData BrokerMetadataError BrokerPersistenceError ChecksumError ConsumerBusy NotConnected "
    "AlreadyClosed InvalidMessage ConsumerNotInitialized ProducerNotInitialized ProducerBusy TooManyLookupRequestException "
    "InvalidTopicName InvalidUrl ServiceUnitNotReady OperationNotSupported ProducerBlockedQuotaExceededError "
    "ProducerBlockedQuotaExceededException ProducerQueueIsFull MessageTooBig TopicNotFound SubscriptionNotFound "
    "ConsumerNotFound UnsupportedVersionError TopicTerminated CryptoError IncompatibleSchema ConsumerAssignError "
    "CumulativeAcknowledgementNotAllowedError TransactionCoordinatorNotFoundError InvalidTxnStatusError NotAllowedError "
    "TransactionConflict TransactionNotFound ProducerFenced MemoryBufferIsFull Interrupted"
)

RESULT_NAMES: Final = _NAMES.split(" ")

Result: Any = cast("Any", _Named)("Result", {name: number for number, name in enumerate(RESULT_NAMES)})
"""First argument of a send's callback, and `.result` of every exception here: `Ok` is 0."""
