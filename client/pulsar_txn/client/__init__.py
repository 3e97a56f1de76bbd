"""The client: connections, producers, consumers, readers and transactions, for asyncio (`AsyncClient`) and blocking (`Client`).

It imports `wire` and no other room. It must never know the broker, a ledger or Spark; and clock,
randomness, sockets and timers reach it only through `runtime`.

Everything that a program needs is imported from here, and loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares them
    from pulsar_txn.client._instrument import instrument as instrument
    from pulsar_txn.client.client import AsyncClient as AsyncClient
    from pulsar_txn.client.client_stats import ClientStats as ClientStats
    from pulsar_txn.client.coordinator import AsyncCoordinator as AsyncCoordinator
    from pulsar_txn.client.errors import *  # noqa: F403 - every class there is a name of this package
    from pulsar_txn.client.loop.options import PipelineEvent as PipelineEvent
    from pulsar_txn.client.loop.options import PipelineOptionsDict as PipelineOptionsDict
    from pulsar_txn.client.loop.options import PipelineResult as PipelineResult
    from pulsar_txn.client.loop.options import Poison as Poison
    from pulsar_txn.client.net.authentication import Authentication as Authentication
    from pulsar_txn.client.net.authentication import BasicAuthentication as BasicAuthentication
    from pulsar_txn.client.net.authentication import TlsAuthentication as TlsAuthentication
    from pulsar_txn.client.net.authentication import TokenAuthentication as TokenAuthentication
    from pulsar_txn.client.net.failover import AutoClusterFailover as AutoClusterFailover
    from pulsar_txn.client.net.oauth2 import OAuth2Authentication as OAuth2Authentication
    from pulsar_txn.client.receive.batch import AsyncTransactionalBatch as AsyncTransactionalBatch
    from pulsar_txn.client.receive.committed import CommittedPosition as CommittedPosition
    from pulsar_txn.client.receive.consistent.position import CutPosition as CutPosition
    from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader as AsyncConsistentReader
    from pulsar_txn.client.receive.consistent.reader import Cut as Cut
    from pulsar_txn.client.receive.consumer import AsyncConsumer as AsyncConsumer
    from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy as DeadLetterPolicy
    from pulsar_txn.client.receive.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from pulsar_txn.client.receive.message import EARLIEST_ID as EARLIEST_ID
    from pulsar_txn.client.receive.message import LATEST_ID as LATEST_ID
    from pulsar_txn.client.receive.message import Message as Message
    from pulsar_txn.client.receive.message_ids import deserialize_message_id as deserialize_message_id
    from pulsar_txn.client.receive.message_ids import serialize_message_id as serialize_message_id
    from pulsar_txn.client.receive.options import ConsumerOptions as ConsumerOptions
    from pulsar_txn.client.receive.options import ConsumerOptionsDict as ConsumerOptionsDict
    from pulsar_txn.client.receive.options import ConsumerType as ConsumerType
    from pulsar_txn.client.receive.options import InitialPosition as InitialPosition
    from pulsar_txn.client.receive.options import KeySharedPolicy as KeySharedPolicy
    from pulsar_txn.client.receive.options import ReaderOptionsDict as ReaderOptionsDict
    from pulsar_txn.client.receive.options import RedeliveryBackoff as RedeliveryBackoff
    from pulsar_txn.client.receive.options import RegexSubscriptionMode as RegexSubscriptionMode
    from pulsar_txn.client.receive.reader import AsyncReader as AsyncReader
    from pulsar_txn.client.receive.table_view import AsyncTableView as AsyncTableView
    from pulsar_txn.client.schema.auto import AutoProduceSchema as AutoProduceSchema
    from pulsar_txn.client.schema.auto import AutoSchema as AutoSchema
    from pulsar_txn.client.schema.avro import AvroSchema as AvroSchema
    from pulsar_txn.client.schema.base import BytesSchema as BytesSchema
    from pulsar_txn.client.schema.base import JsonSchema as JsonSchema
    from pulsar_txn.client.schema.base import Schema as Schema
    from pulsar_txn.client.schema.base import StringSchema as StringSchema
    from pulsar_txn.client.schema.crypto import CryptoFailureAction as CryptoFailureAction
    from pulsar_txn.client.schema.crypto import CryptoKeys as CryptoKeys
    from pulsar_txn.client.schema.crypto import EncryptionContext as EncryptionContext
    from pulsar_txn.client.schema.crypto import PemKeys as PemKeys
    from pulsar_txn.client.schema.key_value import KeyValue as KeyValue
    from pulsar_txn.client.schema.key_value import KeyValueEncoding as KeyValueEncoding
    from pulsar_txn.client.schema.key_value import KeyValueSchema as KeyValueSchema
    from pulsar_txn.client.schema.primitives import BOOLEAN_SCHEMA as BOOLEAN_SCHEMA
    from pulsar_txn.client.schema.primitives import DOUBLE_SCHEMA as DOUBLE_SCHEMA
    from pulsar_txn.client.schema.primitives import FLOAT_SCHEMA as FLOAT_SCHEMA
    from pulsar_txn.client.schema.primitives import INT8_SCHEMA as INT8_SCHEMA
    from pulsar_txn.client.schema.primitives import INT16_SCHEMA as INT16_SCHEMA
    from pulsar_txn.client.schema.primitives import INT32_SCHEMA as INT32_SCHEMA
    from pulsar_txn.client.schema.primitives import INT64_SCHEMA as INT64_SCHEMA
    from pulsar_txn.client.schema.protobuf import ProtobufNativeSchema as ProtobufNativeSchema
    from pulsar_txn.client.send.batching import SendTicket as SendTicket
    from pulsar_txn.client.send.half_messages import AsyncTransactionalProducer as AsyncTransactionalProducer
    from pulsar_txn.client.send.half_messages import HalfMessage as HalfMessage
    from pulsar_txn.client.send.half_messages import HalfSent as HalfSent
    from pulsar_txn.client.send.interceptors import OutgoingMessage as OutgoingMessage
    from pulsar_txn.client.send.interceptors import ProducerInterceptor as ProducerInterceptor
    from pulsar_txn.client.send.options import AccessMode as AccessMode
    from pulsar_txn.client.send.options import BatchingType as BatchingType
    from pulsar_txn.client.send.options import Compression as Compression
    from pulsar_txn.client.send.options import ProducerOptions as ProducerOptions
    from pulsar_txn.client.send.options import ProducerOptionsDict as ProducerOptionsDict
    from pulsar_txn.client.send.producer import AsyncProducer as AsyncProducer
    from pulsar_txn.client.send.routing import HashingScheme as HashingScheme
    from pulsar_txn.client.send.routing import Router as Router
    from pulsar_txn.client.send.routing import RoutingMode as RoutingMode
    from pulsar_txn.client.state.prepared import PreparedToken as PreparedToken
    from pulsar_txn.client.state.transaction import TransactionState as TransactionState
    from pulsar_txn.client.sync import CheckGroup as CheckGroup
    from pulsar_txn.client.sync import Client as Client
    from pulsar_txn.client.sync import ConsistentReader as ConsistentReader
    from pulsar_txn.client.sync import Consumer as Consumer
    from pulsar_txn.client.sync import Coordinator as Coordinator
    from pulsar_txn.client.sync import Producer as Producer
    from pulsar_txn.client.sync import Reader as Reader
    from pulsar_txn.client.sync import TableView as TableView
    from pulsar_txn.client.sync import Transaction as Transaction
    from pulsar_txn.client.sync import TransactionalBatch as TransactionalBatch
    from pulsar_txn.client.sync import TransactionalProducer as TransactionalProducer
    from pulsar_txn.client.txn.check_groups import AsyncCheckGroup as AsyncCheckGroup
    from pulsar_txn.client.txn.check_groups import CheckDecision as CheckDecision
    from pulsar_txn.client.txn.check_groups import CheckedMessage as CheckedMessage
    from pulsar_txn.client.txn.check_groups import CheckQuestion as CheckQuestion
    from pulsar_txn.client.txn.check_groups import Decision as Decision
    from pulsar_txn.client.txn.check_groups import LocalOutcome as LocalOutcome
    from pulsar_txn.client.txn.observers import TransactionObserver as TransactionObserver
    from pulsar_txn.client.txn.observers import TransactionStats as TransactionStats
    from pulsar_txn.client.txn.session import DescribedTransaction as DescribedTransaction
    from pulsar_txn.client.txn.session import TransactionalIdInfo as TransactionalIdInfo
    from pulsar_txn.client.txn.transaction import AsyncTransaction as AsyncTransaction
    from pulsar_txn.client.txn.transaction import Rollback as Rollback
    from pulsar_txn.wire.ids import MessageId as MessageId
    from pulsar_txn.wire.ids import TxnId as TxnId

_NAMES_OF_MODULES = {
    "client._instrument": "instrument",
    "client.client": "AsyncClient",
    "client.client_stats": "ClientStats",
    "client.coordinator": "AsyncCoordinator",
    "client.errors": "AlreadyClosed AuthenticationError AuthorizationError BrokerError ChecksumError CommitOutcomeUnknown "
    "ConnectionLost ConsumerAssignError ConsumerBusy ConsumerNotFound CoordinatorUnavailable CryptoError CutTooLarge "
    "FeatureUnsupported ForkedClientError IncompatibleSchema InvalidConfiguration InvalidTopicName InvalidTransactionStatus "
    "LocalProtocolError MemoryBufferIsFull MessageTooLarge MessagesMissing MetadataError NotAllowedError OperationTimeout "
    "OutOfOrderSequence OutboxAborted OutboxDiverged OutboxOutcomeUnknown OutboxWrongDatabase PersistenceError "
    "PositionUnstable ProducerBlockedQuotaExceededError ProducerBlockedQuotaExceededException ProducerBusy "
    "ProducerFenced ProducerQueueFull ProtocolError PulsarError RemoteProtocolError SchemaMismatch ServiceNotReady "
    "SubscriptionNotFound TooManyRequests TopicNotFound TopicTerminatedError TransactionAborted TransactionConflict "
    "TransactionError TransactionFenced TransactionNotFound TransactionOperationFailed TransactionStateError "
    "TransactionTimedOut TransactionalIdUnsupported TransactionsDisabled UnknownError UnsupportedVersionError "
    "UsageError WrongEventLoop",
    "client.loop.options": "PipelineEvent PipelineOptionsDict PipelineResult Poison",
    "client.net.authentication": "Authentication BasicAuthentication TlsAuthentication TokenAuthentication",
    "client.net.failover": "AutoClusterFailover",
    "client.net.oauth2": "OAuth2Authentication",
    "client.receive.batch": "AsyncTransactionalBatch",
    "client.receive.committed": "CommittedPosition",
    "client.receive.consumer": "AsyncConsumer",
    "client.receive.consistent.position": "CutPosition",
    "client.receive.consistent.reader": "AsyncConsistentReader Cut",
    "client.receive.dead_letters": "DeadLetterPolicy",
    "client.receive.interceptors": "ConsumerInterceptor",
    "client.receive.message": "EARLIEST_ID LATEST_ID Message",
    "client.receive.message_ids": "deserialize_message_id serialize_message_id",
    "client.receive.options": "ConsumerOptions ConsumerOptionsDict ConsumerType InitialPosition KeySharedPolicy "
    "ReaderOptionsDict RedeliveryBackoff RegexSubscriptionMode",
    "client.receive.reader": "AsyncReader",
    "client.receive.table_view": "AsyncTableView",
    "client.schema.auto": "AutoProduceSchema AutoSchema",
    "client.schema.avro": "AvroSchema",
    "client.schema.base": "BytesSchema JsonSchema Schema StringSchema",
    "client.schema.crypto": "CryptoFailureAction CryptoKeys EncryptionContext PemKeys",
    "client.schema.key_value": "KeyValue KeyValueEncoding KeyValueSchema",
    "client.schema.primitives": "BOOLEAN_SCHEMA DOUBLE_SCHEMA FLOAT_SCHEMA INT16_SCHEMA INT32_SCHEMA INT64_SCHEMA INT8_SCHEMA",
    "client.schema.protobuf": "ProtobufNativeSchema",
    "client.send.batching": "SendTicket",
    "client.send.half_messages": "AsyncTransactionalProducer HalfMessage HalfSent",
    "client.send.interceptors": "OutgoingMessage ProducerInterceptor",
    "client.send.options": "AccessMode BatchingType Compression ProducerOptions ProducerOptionsDict",
    "client.send.producer": "AsyncProducer",
    "client.send.routing": "HashingScheme Router RoutingMode",
    "client.sync": "CheckGroup Client ConsistentReader Consumer Coordinator Producer Reader TableView Transaction "
    "TransactionalBatch TransactionalProducer",
    "client.txn.check_groups": "AsyncCheckGroup CheckDecision CheckQuestion CheckedMessage Decision LocalOutcome",
    "client.txn.session": "DescribedTransaction TransactionalIdInfo",
    "client.txn.observers": "TransactionObserver TransactionStats",
    "client.state.prepared": "PreparedToken",
    "client.state.transaction": "TransactionState",
    "client.txn.transaction": "AsyncTransaction Rollback",
    "wire.ids": "MessageId TxnId",
}
_HOMES = {name: f"pulsar_txn.{module}" for module, names in _NAMES_OF_MODULES.items() for name in names.split()}
__all__ = sorted(_HOMES)

if not TYPE_CHECKING:  # a checker that saw it would take every name for known

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
