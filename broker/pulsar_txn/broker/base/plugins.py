"""Plug-ins that configuration values mean: a short name, an entry point's name, `module:Class`, or Pulsar's Java class.

transactionMetadataStoreProviderClassName     group pulsar_txn.coordinators         factory(tc_id)
transactionBufferProviderClassName            group pulsar_txn.transaction_buffers  factory(topic, make_marker)
transactionPendingAckStoreProviderClassName   group pulsar_txn.pending_acks         factory(topic, subscription, cursor)
ledgerProvider                                group pulsar_txn.ledgers              factory(folder)

A class that lacks a method of its protocol is refused when it is chosen, before a transaction needs the method. A factory
that is a function does not say what it makes, so nothing of it is checked.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any, Final

from pulsar_txn.rm_pending_ack.requests import PendingAck
from pulsar_txn.rm_producer.requests import TransactionBuffer
from pulsar_txn.tc.requests import Coordinator

COORDINATORS: Final = "pulsar_txn.coordinators"
TRANSACTION_BUFFERS: Final = "pulsar_txn.transaction_buffers"
PENDING_ACKS: Final = "pulsar_txn.pending_acks"
LEDGERS: Final = "pulsar_txn.ledgers"

_BUILT_IN: Final[dict[str, dict[str, str]]] = {
    COORDINATORS: {"log": "pulsar_txn.tc:TransactionCoordinator", "fencing": "pulsar_txn.tc:FencingCoordinator"},
    TRANSACTION_BUFFERS: {
        "topic": "pulsar_txn.rm_producer:TopicTransactionBuffer",
        "half-topic": "pulsar_txn.rm_producer:HalfTopicTransactionBuffer",
    },
    PENDING_ACKS: {"log": "pulsar_txn.rm_pending_ack:PendingAckHandle"},
    LEDGERS: {"memory": "pulsar_txn.ledger.memory:MemoryStore", "journal": "pulsar_txn.ledger.journal:JournalStore"},
}

_JAVA: Final[dict[str, str]] = {
    "org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider": "log",
    "org.apache.pulsar.transaction.coordinator.impl.InMemTransactionMetadataStoreProvider": "log",
    "org.apache.pulsar.broker.transaction.buffer.impl.TopicTransactionBufferProvider": "topic",
    "org.apache.pulsar.broker.transaction.buffer.impl.InMemTransactionBufferProvider": "topic",
    "org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckStoreProvider": "log",
    "org.apache.pulsar.broker.transaction.pendingack.impl.InMemoryPendingAckStoreProvider": "log",
}


_PROTOCOLS: Final[dict[str, type]] = {
    COORDINATORS: Coordinator,
    TRANSACTION_BUFFERS: TransactionBuffer,
    PENDING_ACKS: PendingAck,
}


class PluginError(ValueError):
    """No such plug-in, it cannot be imported, or it lacks a method. The message names the key's value and what is wrong."""


def resolve(group: str, value: str) -> Callable[..., Any]:
    """The class or factory that `value` means in an entry-point group. Raises PluginError."""
    value = _JAVA.get(value, value)
    target = _BUILT_IN[group].get(value)  # before entry points: a search in all distributions costs milliseconds
    if target is None:
        for point in entry_points(group=group, name=value):
            return _complete(group, value, _loaded(value, point.load))
    module, colon, name = (target or value).partition(":")
    if not colon:
        known = sorted({*_BUILT_IN[group], *(point.name for point in entry_points(group=group))})
        raise PluginError(f"{group}: there is no plug-in {value!r}; write one of {', '.join(known)}, or module:Class")
    return _complete(group, value, _loaded(value, lambda: getattr(importlib.import_module(module), name)))


def _complete(group: str, value: str, factory: Callable[..., Any]) -> Callable[..., Any]:
    protocol = _PROTOCOLS.get(group)
    if protocol is None or not isinstance(factory, type):
        return factory
    missing = [name for name in _methods(protocol) if not callable(getattr(factory, name, None))]
    if missing:
        text = f"lacks {', '.join(missing)}, which this version needs; see the page on plug-ins in the reference"
        raise PluginError(f"plug-in {value!r} ({group}) {text}")
    return factory


def _methods(protocol: type) -> list[str]:
    """Those of an extension point. Properties, and the methods of every machine, may be set by a constructor."""
    return [name for name, member in vars(protocol).items() if isinstance(member, FunctionType) and not name.startswith("_")]


def _loaded(value: str, load: Callable[[], Any]) -> Callable[..., Any]:
    try:
        found = load()
    except (ImportError, AttributeError) as error:
        raise PluginError(f"plug-in {value!r} cannot be imported: {error}") from error
    if not callable(found):
        raise PluginError(f"plug-in {value!r} is a {type(found).__name__}, not a class or factory")
    factory: Callable[..., Any] = found
    return factory
