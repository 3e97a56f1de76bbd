"""Numbers of the partitions of topics: asked once for all tasks, so that equal keys of a micro-batch go to one partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.options import Options


def count_partitions(options: Options, topic: str) -> int:
    """Return how many partitions a topic has now, 0 for one without."""
    return background().run(_count(options, topic))


def counted(options: Options) -> dict[str, int]:
    """Those of the topics that the options name; asked on the driver, before the tasks."""
    return {topic: count_partitions(options, topic) for topic in options.topics}


def known_or_asked(options: Options, known: Mapping[str, int]) -> Callable[[str], int]:
    """Return what a task routes by: what the driver has counted; topics that only its rows name are asked for."""
    return lambda topic: known[topic] if topic in known else count_partitions(options, topic)


async def _count(options: Options, topic: str) -> int:
    client = await background().client(options)
    names = await client.get_topic_partitions(topic)
    return len(names) if names[0].endswith("-partition-0") and not topic.endswith("-partition-0") else 0
