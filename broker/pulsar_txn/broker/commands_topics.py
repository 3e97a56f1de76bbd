"""GET_TOPICS_OF_NAMESPACE, and WATCH_TOPIC_LIST with its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import check_namespace

from .topic_lists import Matches, hash_of, pattern_of

if TYPE_CHECKING:
    from .broker import Broker
    from .connection import Connection, Handler


def _namespace(text: str) -> tuple[str, str]:
    """Tenant and namespace. InvalidName."""
    tenant, _, namespace = text.partition("/")
    check_namespace(tenant, namespace)
    return tenant, namespace


def _pattern(broker: Broker, text: str) -> Matches:
    return pattern_of(text, broker.config.subscription_pattern_max_length)


def _matches_or_none(broker: Broker, text: str) -> Matches | None:
    """None when the client has to look for itself: no pattern, or none that is matched here."""
    if not text or not broker.config.enable_broker_side_subscription_pattern_evaluation:
        return None
    try:
        return _pattern(broker, text)
    except Refusal:
        return None


async def on_get_topics(connection: Connection, body: Any) -> None:
    """GET_TOPICS_OF_NAMESPACE: partitions one by one; with a pattern what matches, with the hash of a list only a new one."""
    tenant, namespace = _namespace(body.namespace)
    broker = connection.broker
    names: set[str] = set()
    if body.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
        names |= set(await broker.catalog.topics_and_partitions(tenant, namespace))
    if body.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        names |= set(broker.non_persistent_topics(tenant, namespace))
    matches = _matches_or_none(broker, body.topics_pattern)
    if matches is not None:
        names = {each for each in names if matches(each)}
    topics_hash = hash_of(names)
    changed = topics_hash != body.topics_hash
    connection.write_command(
        "getTopicsOfNamespaceResponse",
        request_id=body.request_id,
        topics=sorted(names) if changed else [],
        filtered=matches is not None,
        topics_hash=topics_hash,
        changed=changed,
    )


async def on_watch_topic_list(connection: Connection, body: Any) -> None:
    """WATCH_TOPIC_LIST: the topics that match now, unless the client has that list already; changes follow."""
    broker = connection.broker
    if not broker.config.enable_broker_side_subscription_pattern_evaluation:
        raise Refusal(ServerError.NotAllowedError, "Unable to create topic list watcher: topic list watching is disabled.")
    tenant, namespace = _namespace(body.namespace)
    matches = _pattern(broker, body.topics_pattern)
    topics = await broker.topic_lists.watch(connection, body.watcher_id, (tenant, namespace), matches)
    topics_hash = hash_of(topics)
    connection.write_command(
        "watchTopicListSuccess",
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=[] if topics_hash == body.topics_hash else sorted(topics),
        topics_hash=topics_hash,
    )


def on_watch_topic_list_close(connection: Connection, body: Any) -> None:
    """WATCH_TOPIC_LIST_CLOSE: also of a watcher that is not there."""
    connection.broker.topic_lists.close(connection, body.watcher_id)
    connection.write_command("success", request_id=body.request_id)


HANDLERS: Final[dict[int, tuple[str, Handler]]] = {
    32: ("getTopicsOfNamespace", on_get_topics),
    64: ("watchTopicList", on_watch_topic_list),
    67: ("watchTopicListClose", on_watch_topic_list_close),
}
