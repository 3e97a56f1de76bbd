"""Choice of a topic's transaction buffer: by its name or namespace when it is made, and the same one for ever after.

What a topic's log means depends on its buffer: to the half-topic buffer every entry is for readers, to the in-topic one an
entry may belong to an aborted transaction. So a choice that differs from the in-topic buffer is noted with the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.broker.base import plugins
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.ledger.protocols import MetadataStore
from pulsar_txn.wire.topics import InvalidName, TopicName

from .catalog import log_name

_logger = logging.getLogger(__name__)

_NOTES: Final = "/transaction-buffers/"
_IN_TOPIC: Final = "topic"
_HALF_TOPIC: Final = "half-topic"


class BufferChoice:
    """Raises PluginError for keys that name no buffer, or no topic or namespace."""

    def __init__(self, config: BrokerConfig, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._default = config.transaction_buffer_provider_class_name
        self._rules = read_rules(config.transaction_buffer_provider_overrides)
        for value in {self._default, *self._rules.values()}:
            plugins.resolve(plugins.TRANSACTION_BUFFERS, value)

    async def factory(self, topic: TopicName, *, is_new: bool) -> Callable[..., Any]:
        """Factory of the topic's buffer. Notes the choice of a new topic, durably. Raises LedgerError, PluginError."""
        path = _NOTES + log_name(topic)
        noted = await self._metadata.get(path)
        if noted is not None:
            return self._resolved(topic, noted.data.decode())
        if not is_new:
            return self._resolved(topic, _IN_TOPIC if self._default == _HALF_TOPIC else self._default)
        chosen = self._wanted(topic)
        if chosen != _IN_TOPIC:
            await self._metadata.put(path, chosen.encode())
        return plugins.resolve(plugins.TRANSACTION_BUFFERS, chosen)

    async def forget(self, topic: TopicName) -> None:
        """The topic is deleted."""
        await self._metadata.delete(_NOTES + log_name(topic))

    def _wanted(self, topic: TopicName) -> str:
        base = str(topic.base)
        return self._rules.get(base) or self._rules.get(f"{topic.tenant}/{topic.namespace}") or self._default

    def _resolved(self, topic: TopicName, kept: str) -> Callable[..., Any]:
        wanted = self._wanted(topic)
        if kept != wanted:
            _logger.warning(
                "%s keeps the transaction buffer %r with which it was created; %r is for new topics", topic, kept, wanted
            )
        return plugins.resolve(plugins.TRANSACTION_BUFFERS, kept)


def read_rules(text: str) -> dict[str, str]:
    """`transactionBufferProviderOverrides`: full topic names and namespaces to the names of buffers. Raises PluginError."""
    rules: dict[str, str] = {}
    for rule in filter(None, map(str.strip, text.split(","))):
        scope, _, value = (part.strip() for part in rule.rpartition("="))
        if not scope or not value:
            raise plugins.PluginError(f"{rule!r} is no rule; write tenant/namespace=half-topic, or persistent://…=half-topic")
        rules[_scope(scope)] = value
    return rules


def _scope(text: str) -> str:
    """A topic's base, or a namespace."""
    try:
        topic = TopicName.parse(text if "://" in text else f"persistent://{text}/any")
    except InvalidName as error:
        raise plugins.PluginError(f"{text!r} is no namespace and no full name of a topic: {error}") from error
    if not topic.is_persistent:
        raise plugins.PluginError(f"{text!r}: only persistent topics have transactions")
    return str(topic.base) if "://" in text else f"{topic.tenant}/{topic.namespace}"
