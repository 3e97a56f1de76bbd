"""The official client's names on this client: `import pulsar_txn.compat as pulsar`, and the program runs.

Names, arguments, defaults and errors are those of the package `pulsar-client` 3.13. Producers, consumers and readers also take
`txn=`, with what `client.transaction()` gives, a feature the official package lacks. `docs/parity.md` lists what differs and
what is missing. A missing feature raises OperationNotSupported; a parameter without effect gives a DeprecationWarning.

The room imports the public client and no other room; it must never know the broker, a ledger or Spark.
"""

from pulsar_txn.compat import exceptions, schema
from pulsar_txn.compat.client import Client, TableView
from pulsar_txn.compat.consumer import Consumer, Reader
from pulsar_txn.compat.enums import (
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
from pulsar_txn.compat.exceptions import *  # noqa: F403 - 46 names
from pulsar_txn.compat.functions.context import Context
from pulsar_txn.compat.functions.function import Function
from pulsar_txn.compat.functions.serde import IdentitySerDe, PickleSerDe, SerDe
from pulsar_txn.compat.messages import EncryptionContext, EncryptionKey, Message, MessageId
from pulsar_txn.compat.policies import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
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
from pulsar_txn.compat.producer import Producer
from pulsar_txn.compat.schema import BytesSchema

__version__ = "3.13.0"
"""The version of `pulsar-client` whose names are here, for programs that compare it. Ours is that of `pulsar-txn`."""

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
