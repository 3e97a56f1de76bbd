"""The client: connections, producers, consumers, readers and transactions, asyncio first, with a sync twin.

It knows the wire and nothing else of ours. It must never know the broker, a ledger or Spark; and clock,
randomness, sockets and timers reach it only through `runtime`.
"""

from pulsar_txn.client._transactional import transactional
from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.client_stats import ClientStats
from pulsar_txn.client.errors import (
    AlreadyClosed,
    BrokerError,
    CommitOutcomeUnknown,
    ConnectionLost,
    CryptoError,
    OperationTimeout,
    PulsarError,
    TransactionAborted,
    TransactionConflict,
    TransactionError,
    TransactionOperationFailed,
    TransactionsDisabled,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.loop.pipeline import PipelineEvent, PipelineResult, Poison
from pulsar_txn.client.loop.transactional_batch import AsyncTransactionalBatch
from pulsar_txn.client.net.authentication import Authentication, BasicAuthentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.net.failover import AutoClusterFailover
from pulsar_txn.client.net.oauth2 import OAuth2Authentication
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Message
from pulsar_txn.client.receive.message_ids import deserialize_message_id, serialize_message_id
from pulsar_txn.client.receive.options import ConsumerType, InitialPosition, KeySharedPolicy, RegexSubscriptionMode
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.redelivery import RedeliveryBackoff
from pulsar_txn.client.receive.table_view import AsyncTableView
from pulsar_txn.client.schema.auto import AutoProduceSchema, AutoSchema
from pulsar_txn.client.schema.avro import AvroSchema
from pulsar_txn.client.schema.base import BytesSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.schema.crypto import CryptoFailureAction, CryptoKeys, EncryptionContext, PemKeys
from pulsar_txn.client.schema.key_value import KeyValue, KeyValueEncoding, KeyValueSchema
from pulsar_txn.client.schema.primitives import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
)
from pulsar_txn.client.schema.protobuf import ProtobufNativeSchema
from pulsar_txn.client.send.batching import EncodedBatch, SendTicket, encode_batch, row
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerInterceptor
from pulsar_txn.client.send.options import AccessMode, BatchingType, Compression
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.send.routing import HashingScheme, RoutingMode
from pulsar_txn.client.sync import Client, Consumer, Producer, Reader, TableView, Transaction, TransactionalBatch
from pulsar_txn.client.txn.observers import TransactionObserver
from pulsar_txn.client.txn.transaction import AsyncTransaction, Rollback, TransactionState, TransactionStats
from pulsar_txn.wire.ids import MessageId, TxnId

__all__ = [
    "BOOLEAN_SCHEMA",
    "DOUBLE_SCHEMA",
    "EARLIEST_ID",
    "FLOAT_SCHEMA",
    "INT8_SCHEMA",
    "INT16_SCHEMA",
    "INT32_SCHEMA",
    "INT64_SCHEMA",
    "LATEST_ID",
    "AccessMode",
    "AlreadyClosed",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTableView",
    "AsyncTransaction",
    "AsyncTransactionalBatch",
    "Authentication",
    "AutoClusterFailover",
    "AutoProduceSchema",
    "AutoSchema",
    "AvroSchema",
    "BasicAuthentication",
    "BatchingType",
    "BrokerError",
    "BytesSchema",
    "Client",
    "ClientStats",
    "CommitOutcomeUnknown",
    "Compression",
    "ConnectionLost",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerType",
    "CryptoError",
    "CryptoFailureAction",
    "CryptoKeys",
    "DeadLetterPolicy",
    "EncodedBatch",
    "EncryptionContext",
    "HashingScheme",
    "InitialPosition",
    "JsonSchema",
    "KeySharedPolicy",
    "KeyValue",
    "KeyValueEncoding",
    "KeyValueSchema",
    "Message",
    "MessageId",
    "OAuth2Authentication",
    "OperationTimeout",
    "OutgoingMessage",
    "PemKeys",
    "PipelineEvent",
    "PipelineResult",
    "Poison",
    "Producer",
    "ProducerInterceptor",
    "ProtobufNativeSchema",
    "PulsarError",
    "Reader",
    "RedeliveryBackoff",
    "RegexSubscriptionMode",
    "Rollback",
    "RoutingMode",
    "Schema",
    "SendTicket",
    "StringSchema",
    "TableView",
    "TlsAuthentication",
    "TokenAuthentication",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "TransactionError",
    "TransactionObserver",
    "TransactionOperationFailed",
    "TransactionState",
    "TransactionStateError",
    "TransactionStats",
    "TransactionTimedOut",
    "TransactionalBatch",
    "TransactionsDisabled",
    "TxnId",
    "deserialize_message_id",
    "encode_batch",
    "row",
    "serialize_message_id",
    "transactional",
]
