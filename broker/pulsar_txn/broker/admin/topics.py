"""Topics over HTTP: lists, stats, partitions, subscriptions. What is not measured is left out of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, TypeGuard

from aiohttp import web

from pulsar_txn.broker.base.sorted_names import behind, in_order
from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.commands.session import AnyTopic
from pulsar_txn.broker.commands.validation import validate_user_topic
from pulsar_txn.broker.topics.subscription import KIND_NAMES, Subscription
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.ledger.protocols import Log
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, Position
from pulsar_txn.wire.topics import TopicName, check_subscription, partition_name

from .answers import Routes, body_text, done, failed, flag, json_body, text_of, whole_number
from .common import BROKER, existing_subscription, existing_topic, persistent_topic, topic_name
from .lists import after, names_response, value_response

_PERSISTENT: Final = "/admin/v2/{domain:persistent}/{tenant}/{namespace}"
_ANY: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"


# ---- lists


async def list_topics(request: web.Request) -> web.StreamResponse:
    """GET namespace: full names of topics and partitions; nothing of the transaction machinery."""
    info, broker = request.match_info, request.app[BROKER]
    if info["domain"] == "persistent":
        return await names_response(request, broker.catalog.index.topics(info["tenant"], info["namespace"], after(request)))
    names = await broker.non_persistent_topics(info["tenant"], info["namespace"])
    return await names_response(request, behind(names, after(request)))


async def list_partitioned(request: web.Request) -> web.StreamResponse:
    """GET namespace/partitioned: full names of the partitioned topics."""
    info, index = request.match_info, request.app[BROKER].catalog.index
    return await names_response(request, index.partitioned(info["tenant"], info["namespace"], after(request)))


# ---- topics


async def create_topic(request: web.Request) -> web.Response:
    """PUT topic: 409 when it is there, or is partitioned."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    if broker.catalog.exists(name):
        raise Refusal(ServerError.NotAllowedError, f"{name} is there already")
    if await broker.catalog.partitions(name):
        raise Refusal(ServerError.NotAllowedError, f"{name} is there already, with partitions")
    await broker.topic(name)
    return done()


async def delete_topic(request: web.Request) -> web.Response:
    """DELETE topic: 412 while somebody is connected, unless `force=true`."""
    topic = await existing_topic(request)
    _check_unused(request, topic)
    await request.app[BROKER].delete_topic(topic.name)
    return done()


def _check_unused(request: web.Request, topic: AnyTopic) -> None:
    users = len(topic.producers.by_name) + sum(len(each.consumers) for each in topic.subscriptions.values())
    if users and not flag(request, "force"):
        raise web.HTTPPreconditionFailed(text=f"{topic.name} has {users} producers and consumers connected; use force=true")


# ---- partitions


async def show_partitions(request: web.Request) -> web.Response:
    """GET partitions: 0 for a topic that has none."""
    count = await request.app[BROKER].catalog.partitions(topic_name(request))
    return web.json_response({"partitions": count, "deleted": False})


async def create_partitioned(request: web.Request) -> web.Response:
    """PUT partitions, the count in the body: 409 when the topic is there."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    count = await _count(request)
    await broker.catalog.create_partitioned(name, count)
    await broker.turn.budget.for_all(_partitions(name, 0, count), broker.topic)
    return done()


async def grow_partitioned(request: web.Request) -> web.Response:
    """POST partitions, the new count in the body: 422 when there are more already. Subscriptions are made there as well."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    count = await _count(request)
    try:
        before = await broker.catalog.grow_partitioned(name, count)
    except ValueError as error:
        return failed(422, str(error))
    await _add_partitions(broker, name, before, count)
    return done()


async def _add_partitions(broker: Broker, name: TopicName, before: int, count: int) -> None:
    """Open the new partitions with the durable subscriptions of the old ones, so that nobody misses what comes first."""
    subscriptions: set[str] = set()

    async def look(name: TopicName) -> None:
        part = await broker.topic(name)
        if isinstance(part, Topic):
            subscriptions.update(each.name for each in part.subscriptions.values() if each.durable)

    async def make(name: TopicName) -> None:
        part = await broker.topic(name)
        for subscription in sorted(subscriptions):
            await part.subscribe(subscription, durable=True, initial=EARLIEST)

    await broker.turn.budget.for_all(_partitions(name, 0, before), look)
    await broker.turn.budget.for_all(_partitions(name, before, count), make)


def _partitions(name: TopicName, first: int, end: int) -> Iterator[TopicName]:
    return (TopicName.parse(partition_name(str(name), index)) for index in range(first, end))


async def unload_topic(request: web.Request) -> web.Response:
    """PUT unload: close the topic, or all its partitions; clients connect again. 404 when it is not there."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    count = await broker.catalog.partitions(name)
    if not count and str(name) not in broker.topics and not broker.catalog.exists(name):
        raise Refusal(ServerError.TopicNotFound, f"Topic {name} not found")
    parts = _partitions(name, 0, count) if count else [name]
    await broker.turn.budget.for_all((part for part in parts if str(part) in broker.topics), broker.unload_topic)
    return done()


async def compact_topic(request: web.Request) -> web.Response:
    """PUT compaction: begin to compact the topic, or all its partitions. 409 while that is under way."""
    broker, name = request.app[BROKER], topic_name(request)
    count = await broker.catalog.partitions(name)
    if not count:
        (await persistent_topic(request)).compaction.start()
    async for part_name in broker.turn.budget.each(_partitions(name, 0, count), at_a_time=1):
        part = await broker.topic(part_name)
        if isinstance(part, Topic):
            part.compaction.start()
    return done()


async def show_compaction(request: web.Request) -> web.Response:
    """GET compaction: `NOT_RUN`, `RUNNING`, `SUCCESS` or `ERROR` since the topic was opened."""
    compaction = (await persistent_topic(request)).compaction
    return web.json_response({"status": compaction.status, "lastError": compaction.error})


async def delete_partitioned(request: web.Request) -> web.Response:
    """DELETE partitions: the topic with all its partitions."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    count = await broker.catalog.partitions(name)
    if not count:
        raise Refusal(ServerError.TopicNotFound, f"Partitioned topic not found {name}")
    for_all = broker.turn.budget.for_all
    there = [part async for part in broker.turn.budget.each(_partitions(name, 0, count)) if broker.catalog.exists(part)]

    async def check(part: TopicName) -> None:
        _check_unused(request, await broker.topic(part))

    await for_all(there, check)
    await for_all(there, broker.delete_topic)
    await broker.catalog.delete_partitioned(name)
    return done()


async def _count(request: web.Request) -> int:
    return whole_number((await body_text(request)).strip(), "the number of partitions in the body,")


# ---- subscriptions


async def list_subscriptions(request: web.Request) -> web.StreamResponse:
    """GET subscriptions: names."""
    names = list((await existing_topic(request)).subscriptions)
    return await names_response(request, behind(await in_order(names, request.app[BROKER].turn.budget), after(request)))


async def create_subscription(request: web.Request) -> web.Response:
    """PUT subscription: where the body says (see `_start_of`), at the end without one. 409 when it is there."""
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    subscription = request.match_info["subscription"]
    check_subscription(subscription)
    start = await _start_of(request)
    topic = await broker.topic(name)
    if not isinstance(topic, Topic):
        raise Refusal(ServerError.NotAllowedError, f"{name} is not persistent")
    if subscription in topic.subscriptions:
        raise Refusal(ServerError.NotAllowedError, f"{name} has a subscription {subscription!r} already")
    last = topic.log.last_appended
    await topic.subscribe(subscription, durable=True, initial=last if start is None else min(start, last))
    return done()


async def _start_of(request: web.Request) -> Position | None:
    """The mark-delete position that the body asks for; None for the end.

    `"earliest"`, `"latest"`, or a position as Pulsar's tools send it, `{"ledgerId": 3, "entryId": 7}`, which is the first one
    delivered. HTTPBadRequest for everything else.
    """
    if not (await body_text(request)).strip():
        return None
    body = await json_body(request)
    if body in ("latest", None):
        return None
    if body == "earliest":
        return EARLIEST
    ledger_id, entry_id = (body.get("ledgerId"), body.get("entryId")) if isinstance(body, dict) else (None, None)
    if not _is_number(ledger_id) or not _is_number(entry_id):
        forms = '"earliest", "latest" or {"ledgerId": a number, "entryId": a number}'
        raise web.HTTPBadRequest(text=f"the body should be {forms}")
    if ledger_id < 0:
        return EARLIEST
    return (ledger_id, entry_id - 1 if entry_id >= 0 else entry_id)


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and -1 <= value < 1 << 63


async def delete_subscription(request: web.Request) -> web.Response:
    """DELETE subscription: 412 while consumers are connected, unless `force=true`."""
    topic, subscription = await existing_subscription(request)
    if subscription.consumers and not flag(request, "force"):
        raise web.HTTPPreconditionFailed(text=f"{subscription.name!r} has consumers connected; use force=true")
    await topic.unsubscribe(subscription)
    return done()


# ---- stats


async def show_stats(request: web.Request) -> web.StreamResponse:
    """GET stats."""
    return await value_response(request, await stats_of(await existing_topic(request), request.app[BROKER]))


async def show_partitioned_stats(request: web.Request) -> web.StreamResponse:
    """GET partitioned-stats: counters added up, and with `perPartition` (the default) those of each partition."""
    broker, name = request.app[BROKER], topic_name(request)
    count = await broker.catalog.partitions(name)
    if not count:
        raise Refusal(ServerError.TopicNotFound, f"Partitioned topic not found {name}")
    parts: dict[str, dict[str, Any]] = {}
    async for part in broker.turn.budget.each(_partitions(name, 0, count), at_a_time=1):
        if broker.catalog.exists(part):
            parts[str(part)] = await stats_of(await broker.topic(part, create=False), broker)
    counters = ("msgInCounter", "bytesInCounter", "storageSize", "ongoingTxnCount", "abortedTxnCount", "committedTxnCount")
    answer: dict[str, Any] = {key: sum(part.get(key, 0) for part in parts.values()) for key in counters}
    answer["metadata"] = {"partitions": count, "deleted": False}
    answer["partitions"] = parts if request.query.get("perPartition", "true").lower() == "true" else {}
    return await value_response(request, answer)


async def stats_of(topic: AnyTopic, broker: Broker) -> dict[str, Any]:
    """A topic's stats with Pulsar's keys, made in slices."""
    each_of = broker.turn.budget.each
    subscriptions: list[tuple[str, Any]] = list(topic.subscriptions.items())
    stats: dict[str, Any] = {
        "publishers": [_publisher(each) async for each in each_of(list(topic.producers.by_name.values()))],
        "subscriptions": {name: await _subscription(each, each_of) async for name, each in each_of(subscriptions)},
        "ownerBroker": broker.service_url,
    }
    if isinstance(topic, Topic):
        log, buffer = topic.log.stats(), topic.buffer.stats()
        stats |= {
            "msgInCounter": topic.messages_in,
            "bytesInCounter": topic.bytes_in,
            "storageSize": log.bytes,
            "deduplicationStatus": "Enabled" if topic.config.broker_deduplication_enabled else "Disabled",
            "ongoingTxnCount": buffer.ongoing_txn_size,
            "abortedTxnCount": buffer.aborted_txn_count,
            "committedTxnCount": buffer.committed_txn_count,
        }
    return stats


def _publisher(producer: Any) -> dict[str, Any]:
    return {
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "accessMode": producer.mode.name,
        "address": getattr(producer.owner, "peer", ""),
        "clientVersion": getattr(producer.owner, "client_version", ""),
    }


async def _subscription(subscription: Any, each_of: Callable[[Iterable[Any]], AsyncIterator[Any]]) -> dict[str, Any]:
    consumers = list(subscription.consumers)
    machine = subscription.dispatcher.machine if isinstance(subscription, Subscription) else None
    stats: dict[str, Any] = {
        "type": KIND_NAMES[subscription.kind],
        "msgBacklog": max(0, subscription.backlog()),
        "unackedMessages": sum(each.unacked_count for each in consumers),
        "isDurable": getattr(subscription, "durable", False),
        "consumers": [_consumer(each) async for each in each_of(consumers)],
        "msgDelayed": 0 if machine is None else machine.delayed_count,
    }
    if machine is not None and machine.active is not None:
        stats["activeConsumerName"] = machine.active.name
    return stats


def _consumer(consumer: Any) -> dict[str, Any]:
    return {
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked_count,
        "msgOutCounter": consumer.delivered,
        "address": getattr(consumer.owner, "peer", ""),
        "clientVersion": getattr(consumer.owner, "client_version", ""),
    }


async def show_internal_stats(request: web.Request) -> web.StreamResponse:
    """GET internalStats: the log and its cursors."""
    topic = await persistent_topic(request)
    durable = [each for each in topic.subscriptions.values() if each.durable]
    cursors = {each.name: _cursor(each.cursor) async for each in request.app[BROKER].turn.budget.each(durable)}
    return await value_response(request, internal_stats(topic.log) | {"cursors": cursors})


def internal_stats(log: Log) -> dict[str, Any]:
    """A log with the keys of a managed ledger's internal stats."""
    stats = log.stats()
    ledger_id, last_entry_id = stats.last_confirmed
    ledger = {"ledgerId": ledger_id, "entries": 0, "size": 0, "offloaded": False}  # Pulsar counts those that are closed only
    return {
        "numberOfEntries": stats.entries,
        "totalSize": stats.bytes,
        "currentLedgerEntries": last_entry_id + 1,
        "lastConfirmedEntry": text_of(stats.last_confirmed),
        "state": "LedgerOpened",
        "ledgers": [ledger] if ledger_id >= 0 else [],
        "cursors": {},
    }


def _cursor(cursor: Any) -> dict[str, Any]:
    ranges = ",".join(f"[{text_of(first)}..{text_of(last)}]" for first, last in cursor.deleted_ranges(100))
    return {
        "markDeletePosition": text_of(cursor.mark_delete),
        "individuallyDeletedMessages": f"[{ranges}]",
        "properties": cursor.properties,
    }


async def show_last_message_id(request: web.Request) -> web.Response:
    """GET lastMessageId: the last message that readers may see."""
    topic = await persistent_topic(request)
    (ledger_id, entry_id), batch_size = await topic.last_message()
    answer = {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": topic.name.partition}
    return web.json_response(answer if batch_size <= 0 else answer | {"batchIndex": batch_size - 1})


ROUTES: Routes = [
    ("GET", _ANY, list_topics),
    ("GET", f"{_PERSISTENT}/partitioned", list_partitioned),
    ("PUT", f"{_ANY}/{{topic}}", create_topic),
    ("DELETE", f"{_ANY}/{{topic}}", delete_topic),
    ("GET", f"{_ANY}/{{topic}}/partitions", show_partitions),
    ("PUT", f"{_PERSISTENT}/{{topic}}/partitions", create_partitioned),
    ("POST", f"{_PERSISTENT}/{{topic}}/partitions", grow_partitioned),
    ("PUT", f"{_ANY}/{{topic}}/unload", unload_topic),
    ("PUT", f"{_PERSISTENT}/{{topic}}/compaction", compact_topic),
    ("GET", f"{_PERSISTENT}/{{topic}}/compaction", show_compaction),
    ("DELETE", f"{_PERSISTENT}/{{topic}}/partitions", delete_partitioned),
    ("GET", f"{_ANY}/{{topic}}/subscriptions", list_subscriptions),
    ("PUT", f"{_PERSISTENT}/{{topic}}/subscription/{{subscription}}", create_subscription),
    ("DELETE", f"{_PERSISTENT}/{{topic}}/subscription/{{subscription}}", delete_subscription),
    ("GET", f"{_ANY}/{{topic}}/stats", show_stats),
    ("GET", f"{_PERSISTENT}/{{topic}}/partitioned-stats", show_partitioned_stats),
    ("GET", f"{_PERSISTENT}/{{topic}}/internalStats", show_internal_stats),
    ("GET", f"{_PERSISTENT}/{{topic}}/lastMessageId", show_last_message_id),
]
