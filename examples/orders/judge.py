"""What must be true at the end, read with SQL and with the official Pulsar client where it is installed."""

from __future__ import annotations

import json
from collections import Counter

from pulsar_txn.client import Client, OperationTimeout

QUIET_SECONDS = 2.0
"""How long no event has come when all are read."""


def complaints(orders: dict[int, tuple[str, int]], asked: int, pulsar_url: str, topic: str) -> list[str]:
    """One line for each thing that is wrong."""
    found = []
    if set(orders) != set(range(asked)):
        found.append(f"{asked} orders were asked for, {len(orders)} are in the database")
    events = [json.loads(each) for each in read(pulsar_url, topic)]
    counts = Counter(event["order"] for event in events)
    found += [f"order {number} has no event" for number in sorted(set(orders) - set(counts))]
    found += [f"the event of order {number} has no order" for number in sorted(set(counts) - set(orders))]
    found += [f"order {number} has {count} events" for number, count in sorted(counts.items()) if count > 1]
    for event in events:
        if orders.get(event["order"]) not in (None, (event["customer"], event["cents"])):
            found.append(f"the event of order {event['order']} says something else than the order")
    return found


def read(pulsar_url: str, topic: str) -> list[bytes]:
    """All messages of a topic, by a reader that nobody else's state has an effect on."""
    try:
        import pulsar
    except ImportError:
        return _read_with_ours(pulsar_url, topic)
    client = pulsar.Client(pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader, read = client.create_reader(topic, pulsar.MessageId.earliest), []
        while True:
            try:
                read.append(reader.read_next(int(QUIET_SECONDS * 1000)).data())
            except pulsar.Timeout:
                return read
    finally:
        client.close()


def _read_with_ours(pulsar_url: str, topic: str) -> list[bytes]:
    with Client(pulsar_url) as client:
        reader, read = client.create_reader(topic), []
        while True:
            try:
                read.append(reader.read_next(timeout=QUIET_SECONDS).data)
            except OperationTimeout:
                return read
