"""Tools of the client for `compat`, `pipeline` and `tc_service`, which programs do not need.

Everything else those rooms take from `pulsar_txn.client`, as programs do. Nothing here is promised to programs.
"""

from pulsar_txn.client._callables import marked
from pulsar_txn.client._tracebacks import ErrorKinds
from pulsar_txn.client.client import parse_topic
from pulsar_txn.client.loop.lanes import is_fatal
from pulsar_txn.client.loop.pipeline import first_error
from pulsar_txn.client.loop.poison import ERROR_CHARACTERS
from pulsar_txn.client.loop.suspects import FIRST_MESSAGES, FirstMessages
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.pool import ConnectionPool
from pulsar_txn.client.net.requests import Waiter
from pulsar_txn.client.net.runtime import (
    AsyncioRuntime,
    Condition,
    Future,
    Gate,
    Lock,
    Runtime,
    Slots,
    WorkerThread,
    monotonic_seconds,
)
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.thread_futures import answer
from pulsar_txn.client.net.tls import TlsFiles
from pulsar_txn.client.receive.consumer import receives_still
from pulsar_txn.client.receive.dead_letters import LETTERS_SUBSCRIPTION
from pulsar_txn.client.schema.base import PROTOBUF_NATIVE, SchemaInfo, need
from pulsar_txn.client.send.routing import key_partition
from pulsar_txn.client.txn.session import NO_ASSIGN_TOPIC, TRANSACTIONS_OFF, Epoch
from pulsar_txn.client.txn.transaction import AMBIENT, NOT_SAID, noted
from pulsar_txn.client.txn.transactions import (
    abort_all,
    act_as,
    commit_together,
    core_of,
    ends_groups,
    growing_pauses,
    is_open,
    open_for_others,
    open_now,
    take_over,
)
from pulsar_txn.wire.secret_text import Secret, optional_secret, secret, shown
from pulsar_txn.wire.varints import varint

__all__ = [
    "AMBIENT",
    "ERROR_CHARACTERS",
    "FIRST_MESSAGES",
    "LETTERS_SUBSCRIPTION",
    "NOT_SAID",
    "NO_ASSIGN_TOPIC",
    "PROTOBUF_NATIVE",
    "TRANSACTIONS_OFF",
    "Address",
    "AsyncioRuntime",
    "Condition",
    "Connection",
    "ConnectionPool",
    "Epoch",
    "ErrorKinds",
    "FirstMessages",
    "Future",
    "Gate",
    "Lock",
    "Runtime",
    "SchemaInfo",
    "Secret",
    "Settings",
    "Slots",
    "TlsFiles",
    "Waiter",
    "WorkerThread",
    "abort_all",
    "act_as",
    "answer",
    "commit_together",
    "core_of",
    "ends_groups",
    "first_error",
    "growing_pauses",
    "is_fatal",
    "is_open",
    "key_partition",
    "marked",
    "monotonic_seconds",
    "need",
    "noted",
    "open_for_others",
    "open_now",
    "optional_secret",
    "parse_service_url",
    "parse_topic",
    "receives_still",
    "secret",
    "shown",
    "take_over",
    "varint",
]
