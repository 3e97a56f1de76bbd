"""Every error that the client raises, as one tree; `test_client_errors.py` compares this drawing with the classes.

```text
PulsarError
├── UsageError
│   ├── TransactionStateError
│   ├── InvalidConfiguration
│   │   └── OutboxWrongDatabase
│   ├── InvalidTopicName
│   ├── MessageTooLarge
│   ├── SchemaMismatch
│   ├── AlreadyClosed
│   ├── ForkedClientError
│   └── WrongEventLoop
├── ConnectionLost
├── OperationTimeout
├── ProducerQueueFull
│   └── MemoryBufferIsFull
├── CutTooLarge
├── MessagesMissing
├── CryptoError
├── BrokerError
│   ├── UnknownError
│   ├── MetadataError
│   ├── PersistenceError
│   ├── AuthenticationError
│   ├── AuthorizationError
│   ├── ConsumerBusy
│   ├── ServiceNotReady
│   ├── ProducerBlockedQuotaExceededError
│   ├── ProducerBlockedQuotaExceededException
│   ├── ChecksumError
│   ├── UnsupportedVersionError
│   ├── TopicNotFound
│   ├── SubscriptionNotFound
│   ├── ConsumerNotFound
│   ├── TooManyRequests
│   ├── TopicTerminatedError
│   ├── ProducerBusy
│   ├── IncompatibleSchema
│   ├── ConsumerAssignError
│   └── NotAllowedError
│       └── OutOfOrderSequence
├── TransactionError
│   ├── PositionUnstable
│   ├── TransactionAborted
│   │   ├── OutboxAborted
│   │   ├── TransactionConflict
│   │   ├── TransactionOperationFailed
│   │   └── TransactionTimedOut
│   ├── CoordinatorUnavailable
│   ├── InvalidTransactionStatus
│   ├── TransactionNotFound
│   ├── TransactionFenced
│   │   └── ProducerFenced
│   ├── TransactionsDisabled
│   ├── FeatureUnsupported
│   │   └── TransactionalIdUnsupported
│   ├── OutboxDiverged
│   └── CommitOutcomeUnknown
│       └── OutboxOutcomeUnknown
└── ProtocolError
    ├── LocalProtocolError
    └── RemoteProtocolError
```

Three questions of a program, and the attribute with the answer:

* may I repeat *this call*? `.retriable`
* must I abort and run the *unit* again? `.requires_abort`
* must I make a new client (or producer)? `.fatal`

The names under BrokerError are the protocol's ServerError names; a code above BrokerError (InvalidTopicName) or
under TransactionError keeps its place there. `net.server_errors` maps a code to its class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.secret_text import shown


class PulsarError(Exception):
    """Base of everything the client raises on purpose.

    `code` is the protocol's ServerError when the broker refused, else None. `txn_id` and `endpoint`
    (`host:port`) name what it was about; `hint` says what to do; `str()` shows all of it, and no credentials.
    `maybe_processed`: the request may have been carried out although no answer came.
    """

    code: ServerError | None = None
    """The protocol's error code when the broker refused."""
    retriable: bool = False
    """True if the same call may be repeated."""
    requires_abort: bool = False
    """True if the transaction is lost and the unit has to be run again."""
    fatal: bool = False
    """True if this client, producer or consumer is of no further use."""
    paced: bool = False
    """True if the client itself waits before it repeats the call, so that the caller need not."""
    default_hint: ClassVar[str | None] = None
    """Default of `hint`."""

    def __init__(
        self,
        message: str = "",
        *,
        txn_id: TxnId | None = None,
        endpoint: str | None = None,
        hint: str | None = None,
        maybe_processed: bool = False,
        retriable: bool | None = None,
        fatal: bool | None = None,
    ) -> None:
        message = shown(message)
        super().__init__(message)
        self.message = message
        self.txn_id = txn_id
        self.endpoint = endpoint
        self.hint = shown(hint) if hint is not None else self.default_hint
        self.maybe_processed = maybe_processed
        if retriable is not None:
            self.retriable = retriable
        if fatal is not None:
            self.fatal = fatal

    def with_details(
        self, *, txn_id: TxnId | None = None, hint: str | None = None, maybe_processed: bool | None = None
    ) -> Self:
        """Add what the caller knows beyond the place that raised it, and return the error.

        A transaction that the error names already stays; a hint replaces the error's own.
        """
        self.txn_id = self.txn_id or txn_id
        if hint is not None:
            self.hint = shown(hint)
        if maybe_processed is not None:
            self.maybe_processed = maybe_processed
        return self

    def __str__(self) -> str:
        text = self.message or type(self).__name__
        if self.txn_id is not None:
            text += f" [transaction {self.txn_id}]"
        if self.endpoint is not None:
            text += f" [{self.endpoint}]"
        return f"{text}: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between Spark processes; keyword-only arguments need help with pickling.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(cls: type[PulsarError], message: str, state: dict[str, Any]) -> PulsarError:
    error = cls(message)
    error.__dict__.update(state)
    return error


# --- mistakes of the program ---------------------------------------------------------------------------------


class UsageError(PulsarError):
    """The program asked for something that cannot be; nothing was sent."""


class TransactionStateError(UsageError, RuntimeError):
    """A transaction used after its end, committed inside its managed block, or with objects of another client."""


class InvalidConfiguration(UsageError, ValueError):
    """An argument or a service URL that cannot work."""


class OutboxWrongDatabase(InvalidConfiguration):
    """`connect` of an outbox and a block's connection lead to different databases or schemas, or one of these has no identity.

    A block raises it before PREPARE, with both sides rolled back. A check that meets it writes nothing, and answers UNKNOWN.
    """

    default_hint = "let `connect` lead to the same database and schema as the connections of the blocks"


class InvalidTopicName(UsageError, ValueError):
    """A topic name that Pulsar cannot have; ours or the broker's check (code 17)."""

    code = ServerError.InvalidTopicName
    default_hint = "write it as persistent://tenant/namespace/topic, or as a short name"


class MessageTooLarge(UsageError, ValueError):
    """A message above the broker's maximum; nothing was sent."""


class SchemaMismatch(UsageError, TypeError):
    """A value that the schema of the producer cannot encode, or bytes that the schema of the consumer cannot decode."""


class AlreadyClosed(UsageError, RuntimeError):
    """The client, producer, consumer or reader was closed before."""

    default_hint = "create a new one"


class ForkedClientError(UsageError, RuntimeError):
    """A client that was made in a parent process and is used in a forked child."""

    fatal = True
    default_hint = "create the client in the process that uses it"


class WrongEventLoop(UsageError, RuntimeError):
    """An asyncio client is used in another event loop than that of its first operation, or from another thread."""

    default_hint = "create the client inside of the asyncio.run() that uses it"


# --- transport ------------------------------------------------------------------------------------------------


class ConnectionLost(PulsarError, ConnectionError):
    """No connection could be made, or it broke. The client reconnects by itself; the call may be repeated."""

    retriable = True


class OperationTimeout(PulsarError, TimeoutError):
    """No answer within the operation's timeout; `maybe_processed` tells whether the request had left."""

    retriable = True


class ProducerQueueFull(PulsarError):
    """`send_nowait` found the producer's bounds (messages or bytes in flight) reached; nothing was queued."""

    retriable = True
    default_hint = "call producer.wait_for_room() first, or use producer.send(), which waits"


class MemoryBufferIsFull(ProducerQueueFull):
    """The same for all producers of the client: as many bytes are in flight as its `memory_limit` allows."""


class CutTooLarge(PulsarError):
    """Transactions that a consistent reader must show together need more than its limits allow."""

    fatal = True
    default_hint = "go on from the last position with larger limits"


class MessagesMissing(PulsarError):
    """A consistent reader did not get messages that it has to show: they are gone, damaged, or cannot be decrypted."""

    fatal = True
    default_hint = "see the log of the client; if retention has removed them, begin again where the topics are whole"


class CryptoError(PulsarError):
    """End-to-end encryption failed: a key is missing or unusable, or a payload cannot be decrypted."""


# --- the broker said no ---------------------------------------------------------------------------------------


class BrokerError(PulsarError):
    """The broker refused; one subclass per ServerError code that has no better place in the tree."""


class UnknownError(BrokerError):
    """The broker failed without a code of its own; repeating often helps (a topic being moved, a store not ready)."""

    code = ServerError.UnknownError
    retriable = True


class MetadataError(BrokerError):
    """The broker's metadata store failed."""

    code = ServerError.MetadataError
    retriable = True


class PersistenceError(BrokerError):
    """The broker's storage failed."""

    code = ServerError.PersistenceError
    retriable = True


class AuthenticationError(BrokerError):
    """The broker did not accept the client's credentials."""

    code = ServerError.AuthenticationError
    fatal = True
    default_hint = "check the client's authentication"


class AuthorizationError(BrokerError):
    """The client is known to the broker, but is not allowed to do this."""

    code = ServerError.AuthorizationError
    default_hint = "ask for the permission on this topic or namespace"


class ConsumerBusy(BrokerError):
    """The subscription has another exclusive consumer, or is of another type."""

    code = ServerError.ConsumerBusy
    default_hint = "close the other consumer, or use the same shared consumer type everywhere"


class ServiceNotReady(BrokerError):
    """The broker does not serve this topic (yet, or any more)."""

    code = ServerError.ServiceNotReady
    retriable = True


class ProducerBlockedQuotaExceededError(BrokerError):
    """The backlog quota of the namespace is used up; producers are held back."""

    code = ServerError.ProducerBlockedQuotaExceededError
    retriable = True


class ProducerBlockedQuotaExceededException(BrokerError):
    """The backlog quota of the namespace is used up; producers are refused."""

    code = ServerError.ProducerBlockedQuotaExceededException


class ChecksumError(BrokerError):
    """The broker found that a message was damaged on its way."""

    code = ServerError.ChecksumError


class UnsupportedVersionError(BrokerError):
    """The broker is too old for this client, or for what was asked of it."""

    code = ServerError.UnsupportedVersionError
    fatal = True
    default_hint = "Pulsar 2.10 or newer is needed"


class TopicNotFound(BrokerError):
    """The topic does not exist and the broker does not create topics by itself."""

    code = ServerError.TopicNotFound


class SubscriptionNotFound(BrokerError):
    """The subscription does not exist and the broker does not create subscriptions by itself."""

    code = ServerError.SubscriptionNotFound


class ConsumerNotFound(BrokerError):
    """The broker does not know this consumer (any more)."""

    code = ServerError.ConsumerNotFound
    retriable = True


class TooManyRequests(BrokerError):
    """The broker has too many lookups at once."""

    code = ServerError.TooManyRequests
    retriable = True


class TopicTerminatedError(BrokerError):
    """The topic was terminated: it takes no more messages."""

    code = ServerError.TopicTerminatedError


class ProducerBusy(BrokerError):
    """Another producer holds this name, or exclusive access to the topic."""

    code = ServerError.ProducerBusy
    default_hint = "use another producer name, or wait for the other producer to close"


class IncompatibleSchema(BrokerError):
    """The schema does not fit the topic's schemas."""

    code = ServerError.IncompatibleSchema


class ConsumerAssignError(BrokerError):
    """The broker could not assign this consumer (sticky key ranges that overlap, for instance)."""

    code = ServerError.ConsumerAssignError


class NotAllowedError(BrokerError):
    """The broker's configuration or the state of the topic forbids this."""

    code = ServerError.NotAllowedError


class OutOfOrderSequence(NotAllowedError):
    """A message was refused because one before it is missing: its sequence id is not the next one of its producer.

    Only producers with `refuse_sequence_gaps=True` get it. Nothing was stored. `expected_sequence_id` is the next one.
    """

    default_hint = "send again from expected_sequence_id on (sequence_id=), or create the producer again: it goes on there"

    def __init__(self, message: str = "", *, expected_sequence_id: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.expected_sequence_id = expected_sequence_id


# --- transactions ---------------------------------------------------------------------------------------------


class TransactionError(PulsarError):
    """An error of a transaction; see the classes below it."""


class PositionUnstable(TransactionError):
    """The committed position was asked for, and the open transaction `txn_id` holds acknowledgements that may move it."""

    retriable = True
    default_hint = "ask again when the transaction has ended, or use require_stable=False"


class TransactionAborted(TransactionError):
    """The unit did not happen and never will: it is safe to run it again."""

    requires_abort = True


class TransactionConflict(TransactionAborted):
    """A message is already acknowledged in another open transaction, or was acknowledged before."""

    code = ServerError.TransactionConflict
    default_hint = "abort, and run the unit again; within one, acknowledge each message once"


class TransactionOperationFailed(TransactionAborted):
    """A send or an acknowledgement of the transaction failed, so it was aborted; `failures` are the causes, oldest first."""

    def __init__(self, message: str = "", *, failures: Iterable[BaseException] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.failures = tuple(failures)


class TransactionTimedOut(TransactionAborted, TimeoutError):
    """The transaction lived longer than its timeout; the coordinator aborts it."""


class OutboxAborted(TransactionAborted):
    """The coordinator, or a check, had ended the transaction before the database committed: both are rolled back."""

    default_hint = "run the unit again, in smaller pieces or with a larger timeout="


class CoordinatorUnavailable(TransactionError):
    """The coordinator of the transaction is not served anywhere at this moment."""

    code = ServerError.TransactionCoordinatorNotFound
    retriable = True


class InvalidTransactionStatus(TransactionError):
    """The transaction is in a state in which this cannot be done; the handle is of no further use.

    `definite`: the coordinator keeps outcomes (ours does), so a commit that it refuses so never happened, whatever was asked
    before. A stock coordinator may answer a repeated commit like this although the first one was carried out.
    """

    code = ServerError.InvalidTxnStatus
    definite: bool = False


class TransactionNotFound(TransactionError):
    """The coordinator does not know the transaction (any more), or it belongs to someone else."""

    code = ServerError.TransactionNotFound


class TransactionFenced(TransactionError):
    """A newer owner has taken over; this one must stop.

    `definite`: a coordinator that keeps outcomes answered a commit with it, so that commit never happened.
    """

    fatal = True
    definite: bool = False


class ProducerFenced(TransactionFenced):
    """Another producer took exclusive access to the topic, or another client the transactional id, with a newer epoch."""

    code = ServerError.ProducerFenced
    default_hint = "stop this worker: its successor is already writing"


class TransactionsDisabled(TransactionError, NotImplementedError):
    """The cluster has no transaction coordinator."""

    default_hint = "set transactionCoordinatorEnabled=true on every broker and initialise the coordinator metadata"


class FeatureUnsupported(TransactionError, NotImplementedError):
    """The coordinator lacks what was asked for (back-check, prepare, an early answer); nothing of it was sent.

    Stock Pulsar has none of these. Our broker has them, and so has `pulsar-txn coordinator`.
    """

    fatal = True
    default_hint = (
        "leave it out, or use a coordinator that has it: `pulsar-txn standalone`, or `pulsar-txn coordinator` beside a cluster"
    )


class TransactionalIdUnsupported(FeatureUnsupported):
    """The client has a transactional id, and this broker would not fence by it; no transaction was begun."""

    default_hint = "leave transactional_id out and fence by topic (access_mode), or use a broker with fencing coordinators"


class CommitOutcomeUnknown(TransactionError):
    """END_TXN may have been carried out, but its answer was lost; `await error.resolve()` asks again.

    With the blocking client `error.resolve()` needs no await. The transaction sets `resolver`, a coroutine function;
    the blocking client sets `sync_resolver`.
    """

    resolver: Any = None
    sync_resolver: Any = None

    def resolve(self) -> Any:
        """Ask for the outcome: TransactionState COMMITTED, ABORTED or UNKNOWN. Await it with an AsyncClient.

        Raises an error when it cannot ask. Safe to cancel and to repeat.
        """
        ask = self.sync_resolver or self.resolver
        if ask is None:
            raise TransactionStateError(
                "this error has no way to its client", hint="use client.attach_transaction(error.txn_id) instead"
            )
        return ask()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("resolver", "sync_resolver")}
        return (_rebuild, (type(self), self.message, state))


class OutboxOutcomeUnknown(CommitOutcomeUnknown):
    """The database's COMMIT was not answered, and the database cannot be asked; `resolve()` asks it again.

    Without that the coordinator asks the group until the database tells. Pulsar ends as the database did.
    """


class OutboxDiverged(TransactionError):
    """The database has committed, and the Pulsar transaction was aborted by force: by an operator, or a policy that says so.

    Its messages are lost, and its acknowledgements come again. The row of the outbox's table stays.
    """

    default_hint = "send the messages of this unit again, or undo what the database has committed"


# --- protocol -------------------------------------------------------------------------------------------------


class ProtocolError(PulsarError):
    """One side broke the rules of the protocol."""


class LocalProtocolError(ProtocolError):
    """This client broke the rules of the protocol: a defect."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules of the protocol: it is not a Pulsar server, or a broken one. The connection is closed."""
