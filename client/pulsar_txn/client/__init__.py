"""The client: connections, producers, consumers, readers and transactions, for asyncio (`AsyncClient`) and blocking (`Client`).

It imports `wire` and no other room. It must never know the broker, a ledger or Spark; and clock,
randomness, sockets and timers reach it only through `runtime`.

A program begins with the names of this package, which are loaded when they are first asked for. Every other public name has one
module below it: `authentication`, `cuts`, `encoded`, `encryption`, `errors`, `events`, `half_messages`, `messages`, `options`,
`otel`, `otel_metrics`, `outbox`, `pipelines`, `schemas`, `stats`, `transactions`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares them
    from pulsar_txn.client._instrument import instrument as instrument
    from pulsar_txn.client.client import AsyncClient as AsyncClient
    from pulsar_txn.client.coordinator import AsyncCoordinator as AsyncCoordinator
    from pulsar_txn.client.errors import AlreadyClosed as AlreadyClosed
    from pulsar_txn.client.errors import AuthenticationError as AuthenticationError
    from pulsar_txn.client.errors import AuthorizationError as AuthorizationError
    from pulsar_txn.client.errors import CommitOutcomeUnknown as CommitOutcomeUnknown
    from pulsar_txn.client.errors import ConnectionLost as ConnectionLost
    from pulsar_txn.client.errors import ConsumerBusy as ConsumerBusy
    from pulsar_txn.client.errors import InvalidConfiguration as InvalidConfiguration
    from pulsar_txn.client.errors import MessageTooLarge as MessageTooLarge
    from pulsar_txn.client.errors import OperationTimeout as OperationTimeout
    from pulsar_txn.client.errors import ProducerBusy as ProducerBusy
    from pulsar_txn.client.errors import ProducerFenced as ProducerFenced
    from pulsar_txn.client.errors import ProducerQueueFull as ProducerQueueFull
    from pulsar_txn.client.errors import PulsarError as PulsarError
    from pulsar_txn.client.errors import SchemaMismatch as SchemaMismatch
    from pulsar_txn.client.errors import TopicNotFound as TopicNotFound
    from pulsar_txn.client.errors import TransactionAborted as TransactionAborted
    from pulsar_txn.client.errors import TransactionConflict as TransactionConflict
    from pulsar_txn.client.errors import TransactionError as TransactionError
    from pulsar_txn.client.errors import TransactionOperationFailed as TransactionOperationFailed
    from pulsar_txn.client.errors import TransactionStateError as TransactionStateError
    from pulsar_txn.client.errors import TransactionTimedOut as TransactionTimedOut
    from pulsar_txn.client.loop.options import Poison as Poison
    from pulsar_txn.client.net.authentication import TlsAuthentication as TlsAuthentication
    from pulsar_txn.client.net.authentication import TokenAuthentication as TokenAuthentication
    from pulsar_txn.client.receive.consumer import AsyncConsumer as AsyncConsumer
    from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy as DeadLetterPolicy
    from pulsar_txn.client.receive.message import EARLIEST_ID as EARLIEST_ID
    from pulsar_txn.client.receive.message import LATEST_ID as LATEST_ID
    from pulsar_txn.client.receive.message import Message as Message
    from pulsar_txn.client.receive.options import ConsumerType as ConsumerType
    from pulsar_txn.client.receive.options import InitialPosition as InitialPosition
    from pulsar_txn.client.receive.options import KeySharedPolicy as KeySharedPolicy
    from pulsar_txn.client.receive.options import RedeliveryBackoff as RedeliveryBackoff
    from pulsar_txn.client.receive.reader import AsyncReader as AsyncReader
    from pulsar_txn.client.receive.table_view import AsyncTableView as AsyncTableView
    from pulsar_txn.client.schema.avro import AvroSchema as AvroSchema
    from pulsar_txn.client.schema.base import BytesSchema as BytesSchema
    from pulsar_txn.client.schema.base import JsonSchema as JsonSchema
    from pulsar_txn.client.schema.base import Schema as Schema
    from pulsar_txn.client.schema.base import StringSchema as StringSchema
    from pulsar_txn.client.send.options import AccessMode as AccessMode
    from pulsar_txn.client.send.options import BatchingType as BatchingType
    from pulsar_txn.client.send.options import Compression as Compression
    from pulsar_txn.client.send.producer import AsyncProducer as AsyncProducer
    from pulsar_txn.client.send.routing import RoutingMode as RoutingMode
    from pulsar_txn.client.state.transaction import TransactionState as TransactionState
    from pulsar_txn.client.sync import Client as Client
    from pulsar_txn.client.sync import Consumer as Consumer
    from pulsar_txn.client.sync import Coordinator as Coordinator
    from pulsar_txn.client.sync import Producer as Producer
    from pulsar_txn.client.sync import Reader as Reader
    from pulsar_txn.client.sync import TableView as TableView
    from pulsar_txn.client.sync import Transaction as Transaction
    from pulsar_txn.client.txn.transaction import AsyncTransaction as AsyncTransaction
    from pulsar_txn.client.txn.transaction import Rollback as Rollback
    from pulsar_txn.wire.ids import MessageId as MessageId
    from pulsar_txn.wire.ids import TxnId as TxnId

_NAMES_OF_MODULES = {
    "client._instrument": "instrument",
    "client.client": "AsyncClient",
    "client.coordinator": "AsyncCoordinator",
    "client.errors": "AlreadyClosed AuthenticationError AuthorizationError CommitOutcomeUnknown ConnectionLost ConsumerBusy "
    "InvalidConfiguration MessageTooLarge OperationTimeout ProducerBusy ProducerFenced ProducerQueueFull "
    "PulsarError SchemaMismatch TopicNotFound TransactionAborted TransactionConflict TransactionError "
    "TransactionOperationFailed TransactionStateError TransactionTimedOut",
    "client.loop.options": "Poison",
    "client.net.authentication": "TlsAuthentication TokenAuthentication",
    "client.receive.consumer": "AsyncConsumer",
    "client.receive.dead_letters": "DeadLetterPolicy",
    "client.receive.message": "EARLIEST_ID LATEST_ID Message",
    "client.receive.options": "ConsumerType InitialPosition KeySharedPolicy RedeliveryBackoff",
    "client.receive.reader": "AsyncReader",
    "client.receive.table_view": "AsyncTableView",
    "client.schema.avro": "AvroSchema",
    "client.schema.base": "BytesSchema JsonSchema Schema StringSchema",
    "client.send.options": "AccessMode BatchingType Compression",
    "client.send.producer": "AsyncProducer",
    "client.send.routing": "RoutingMode",
    "client.state.transaction": "TransactionState",
    "client.sync": "Client Consumer Coordinator Producer Reader TableView Transaction",
    "client.txn.transaction": "AsyncTransaction Rollback",
    "wire.ids": "MessageId TxnId",
}
"""Module of ours -> the names of this package that are written in it."""

_NAMES_ELSEWHERE = {
    "authentication": "Authentication BasicAuthentication OAuth2Authentication",
    "cuts": "AsyncConsistentReader ConsistentReader Cut CutPosition",
    "encryption": "CryptoFailureAction CryptoKeys EncryptionContext PemKeys",
    "errors": "BrokerError ChecksumError ConsumerAssignError ConsumerNotFound CoordinatorUnavailable CryptoError "
    "CutTooLarge FeatureUnsupported ForkedClientError IncompatibleSchema InvalidTopicName "
    "InvalidTransactionStatus LocalProtocolError MemoryBufferIsFull MessagesMissing MetadataError "
    "NotAllowedError OutOfOrderSequence OutboxAborted OutboxDiverged OutboxOutcomeUnknown OutboxWrongDatabase "
    "PersistenceError PositionUnstable ProducerBlockedQuotaExceededError "
    "ProducerBlockedQuotaExceededException ProtocolError RemoteProtocolError ServiceNotReady "
    "SubscriptionNotFound TooManyRequests TopicTerminatedError TransactionFenced TransactionNotFound "
    "TransactionalIdUnsupported TransactionsDisabled UnknownError UnsupportedVersionError UsageError "
    "WrongEventLoop",
    "events": "ConsumerInterceptor OutgoingMessage PipelineEvent ProducerInterceptor TransactionObserver",
    "half_messages": "AsyncCheckGroup AsyncTransactionalProducer CheckDecision CheckGroup CheckQuestion CheckedMessage "
    "Decision HalfMessage HalfSent LocalOutcome TransactionalProducer",
    "messages": "CommittedPosition SendTicket deserialize_message_id serialize_message_id",
    "options": "AutoClusterFailover ConsumerOptions ConsumerOptionsDict HashingScheme ProducerOptions "
    "ProducerOptionsDict ReaderOptionsDict RegexSubscriptionMode Router",
    "pipelines": "AsyncTransactionalBatch PipelineOptionsDict PipelineResult TransactionalBatch",
    "schemas": "AutoProduceSchema AutoSchema BOOLEAN_SCHEMA DOUBLE_SCHEMA FLOAT_SCHEMA Float32 INT16_SCHEMA INT32_SCHEMA "
    "INT64_SCHEMA INT8_SCHEMA Int32 KeyValue KeyValueEncoding KeyValueSchema ProtobufNativeSchema",
    "stats": "ClientStats ConsumerStats PartitionStats Phases ProducerStats SubscriptionStats TransactionStats",
    "transactions": "DescribedTransaction PreparedToken TransactionalIdInfo",
}
"""Public module -> the names that it has and this package has not."""

_HOMES = {name: f"pulsar_txn.{module}" for module, names in _NAMES_OF_MODULES.items() for name in names.split()}
_ELSEWHERE = {name: f"{__name__}.{module}" for module, names in _NAMES_ELSEWHERE.items() for name in names.split()}
__all__ = sorted(_HOMES)

if not TYPE_CHECKING:  # a checker that saw it would take every name for known

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is not None:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
        module = _ELSEWHERE.get(name)
        if module is not None:
            # An import statement replaces an AttributeError by one of its own, without the place.
            raise ImportError(f"`{__name__}.{name}` is in `{module}`: from {module} import {name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
