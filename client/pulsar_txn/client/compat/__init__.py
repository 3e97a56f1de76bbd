"""The official client's names on this client: `import pulsar_txn.client.compat as pulsar`, and the program runs.

Same names, arguments, defaults and errors as the package `pulsar-client` 3.13. Producers, consumers and readers also take
`txn=`, with what `client.transaction()` gives, which the official package has not. What differs or is missing stands in
`docs/parity.md`; what is missing raises OperationNotSupported, a parameter without effect gives a DeprecationWarning.
"""

from pulsar_txn.client.compat import exceptions, schema
from pulsar_txn.client.compat.authentication import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_txn.client.compat.client import Client
from pulsar_txn.client.compat.consumer import Consumer, Reader
from pulsar_txn.client.compat.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    LoggerLevel,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    Result,
)
from pulsar_txn.client.compat.exceptions import *  # noqa: F403 - 46 names
from pulsar_txn.client.compat.functions.context import Context
from pulsar_txn.client.compat.functions.function import Function
from pulsar_txn.client.compat.functions.serde import IdentitySerDe, PickleSerDe, SerDe
from pulsar_txn.client.compat.ids import MessageId
from pulsar_txn.client.compat.messages import EncryptionContext, EncryptionKey, Message
from pulsar_txn.client.compat.policies import (
    AutoClusterFailover,
    ConsoleLogger,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    FileLogger,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_txn.client.compat.producer import Producer
from pulsar_txn.client.compat.schema import BytesSchema
from pulsar_txn.client.compat.table_view import TableView

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "BatchingType",
    "BytesSchema",
    "Client",
    "CompressionType",
    "ConsoleLogger",
    "Consumer",
    "ConsumerBatchReceivePolicy",
    "ConsumerCryptoFailureAction",
    "ConsumerDeadLetterPolicy",
    "ConsumerKeySharedPolicy",
    "ConsumerType",
    "Context",
    "CryptoKeyReader",
    "EncryptionContext",
    "EncryptionKey",
    "FileLogger",
    "Function",
    "IdentitySerDe",
    "InitialPosition",
    "KeySharedMode",
    "LoggerLevel",
    "Message",
    "MessageId",
    "PartitionsRoutingMode",
    "PickleSerDe",
    "Producer",
    "ProducerAccessMode",
    "Reader",
    "RegexSubscriptionMode",
    "Result",
    "SerDe",
    "ServiceInfo",
    "ServiceInfoProvider",
    "TableView",
    "exceptions",
    "schema",
]
