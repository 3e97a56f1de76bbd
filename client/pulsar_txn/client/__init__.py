"""The client: connections, producers, consumers, readers and transactions, asyncio first, with a sync twin.

It knows the wire and nothing else of ours. It must never know the broker, a ledger or Spark; and clock,
randomness, sockets and timers reach it only through `runtime`.
"""

from pulsar_txn.client._transactional import transactional
from pulsar_txn.client.authentication import Authentication, BasicAuthentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.batching import EncodedBatch, SendTicket, encode_batch, row
from pulsar_txn.client.client import Client
from pulsar_txn.client.client_stats import ClientStats
from pulsar_txn.client.consumer import Consumer
from pulsar_txn.client.consumer_options import ConsumerType, InitialPosition, KeySharedPolicy, RegexSubscriptionMode
from pulsar_txn.client.crypto import CryptoFailureAction, CryptoKeys, EncryptionContext, PemKeys
from pulsar_txn.client.dead_letters import DeadLetterPolicy
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
from pulsar_txn.client.failover import AutoClusterFailover
from pulsar_txn.client.interceptors import ConsumerInterceptor, OutgoingMessage, ProducerInterceptor
from pulsar_txn.client.message import EARLIEST_ID, LATEST_ID, Message
from pulsar_txn.client.message_ids import deserialize_message_id, serialize_message_id
from pulsar_txn.client.oauth2 import OAuth2Authentication
from pulsar_txn.client.observers import TransactionObserver
from pulsar_txn.client.pipeline import PipelineEvent, PipelineResult, Poison
from pulsar_txn.client.producer import Producer
from pulsar_txn.client.producer_options import AccessMode, BatchingType, Compression
from pulsar_txn.client.reader import Reader
from pulsar_txn.client.redelivery import RedeliveryBackoff
from pulsar_txn.client.routing import HashingScheme, RoutingMode
from pulsar_txn.client.schema import BytesSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.schema_auto import AutoProduceSchema, AutoSchema
from pulsar_txn.client.schema_avro import AvroSchema
from pulsar_txn.client.schema_key_value import KeyValue, KeyValueEncoding, KeyValueSchema
from pulsar_txn.client.schema_primitives import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
)
from pulsar_txn.client.schema_protobuf import ProtobufNativeSchema
from pulsar_txn.client.table_view import TableView
from pulsar_txn.client.transaction import Rollback, Transaction, TransactionState, TransactionStats
from pulsar_txn.client.transactional_batch import TransactionalBatch
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
