"""Error codes of the protocol, refusals of the machines, and what can be wrong with bytes.

WireError(ValueError)                  bytes that are not what they should be
├── FrameTooLarge                      announced size above the limit
├── MalformedFrame                     truncated, or sizes that contradict each other, or not protobuf
├── UnknownCommand                     a command type that this protocol version does not have
├── ChecksumMismatch                   CRC32C of an entry does not fit
└── MalformedBatch                     batch payload that does not divide into its messages, or does not decompress
Refusal(Exception)                     a machine's typed "no": `.code` is the ServerError that travels
"""

from __future__ import annotations

import enum


class ServerError(enum.IntEnum):
    """Protocol enum ServerError, by its Pulsar names."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


class Refusal(Exception):  # noqa: N818 - the field's word: a machine refuses, nothing broke
    """A machine's typed refusal of a request. Nothing was written; the reply still waits for the log's tail."""

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class WireError(ValueError):
    """Bytes that are not what the protocol says they should be. The connection they came from is to be closed."""


class FrameTooLarge(WireError):  # noqa: N818 - named by what is wrong
    """The announced frame size is above the limit; raised before anything of the frame is buffered."""


class MalformedFrame(WireError):  # noqa: N818 - named by what is wrong
    """A frame whose sizes contradict each other or whose command is not protobuf."""


class UnknownCommand(WireError):  # noqa: N818 - named by what is wrong
    """A command type outside this protocol version; `.type` is its number."""

    def __init__(self, command_type: int) -> None:
        super().__init__(f"unknown command type {command_type}: the peer speaks another protocol version, or is not Pulsar")
        self.type = command_type


class ChecksumMismatch(WireError):  # noqa: N818 - named by what is wrong
    """The CRC32C of an entry does not fit its bytes."""


class MalformedBatch(WireError):  # noqa: N818 - named by what is wrong
    """A batch payload that does not divide into the messages it announces, or does not decompress."""
