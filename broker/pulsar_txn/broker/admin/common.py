"""Parts that the broker's handlers share: the broker, and the topics and subscriptions that a path names."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.commands.session import AnyTopic
from pulsar_txn.broker.commands.validation import validate_user_topic
from pulsar_txn.broker.topics.subscription import Subscription
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import TopicName

BROKER: Final = web.AppKey("broker", Broker)


def topic_name(request: web.Request) -> TopicName:
    """The topic that the path names. InvalidName."""
    info = request.match_info
    domain = info.get("domain", "persistent")
    return TopicName.parse(f"{domain}://{info['tenant']}/{info['namespace']}/{info['topic']}")


async def existing_topic(request: web.Request) -> AnyTopic:
    """The topic that the path names, opened. Refusal TopicNotFound when it is not there; nothing is made.

    Refusal NotAllowedError for topics of the transaction machinery: their logs belong to somebody else.
    """
    broker, name = request.app[BROKER], topic_name(request)
    validate_user_topic(name)
    found = await opened(broker, name)
    if found is None:
        raise Refusal(ServerError.TopicNotFound, f"Topic not found {name}")
    return found


async def opened(broker: Broker, name: TopicName) -> AnyTopic | None:
    """The topic, opened; None when it is not there. Nothing is made."""
    found = broker.topics.get(str(name))
    if found is None and name.is_persistent and broker.catalog.exists(name):
        return await broker.topic(name, create=False)
    return found


async def persistent_topic(request: web.Request) -> Topic:
    """As `existing_topic`. Refusal NotAllowedError for one that is not persistent."""
    topic = await existing_topic(request)
    if not isinstance(topic, Topic):
        raise Refusal(ServerError.NotAllowedError, f"{topic.name} is not persistent")
    return topic


async def existing_subscription(request: web.Request) -> tuple[Topic, Subscription]:
    """The topic and the subscription that the path names. Refusals TopicNotFound, SubscriptionNotFound."""
    topic = await persistent_topic(request)
    name = request.match_info["subscription"]
    found = topic.subscriptions.get(name)
    if found is None:
        raise Refusal(ServerError.SubscriptionNotFound, f"{topic.name} has no subscription {name!r}")
    return topic, found
