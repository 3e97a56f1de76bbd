"""One driver with the official Python client, a process of its own; prints one line of JSON.

python bench/client/official.py produce URL --size 100 --warm 1 --seconds 2
python bench/client/official.py consume URL --how receive|batch|listener --topic T --count N
echo 1000 | python bench/client/official.py latency URL
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import pulsar
from measuring import Part, send_in_turns, tell, topic_name

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def produce(client: pulsar.Client, options: Any) -> dict[str, Any]:
    """`send_async` with a callback that counts, as its documentation shows."""
    payload = bytes(options.size)
    producer = client.create_producer(
        topic_name("official"),
        batching_enabled=True,
        batching_max_publish_delay_ms=options.delay_ms,
        max_pending_messages=50_000,
        block_if_queue_full=True,
    )
    failed: list[pulsar.Result] = []

    def stored(result: pulsar.Result, _message_id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    def send(seconds: float) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(1000):
                producer.send_async(payload, stored)
            count += 1000
        producer.flush()
        return count

    send(options.warm)
    part = Part()
    result = part.end(send(options.seconds))
    if failed:
        raise RuntimeError(f"{len(failed)} sends failed: {failed[0]}")
    return result


def consume(client: pulsar.Client, options: Any) -> dict[str, Any]:
    """Everything that is in a topic, each message looked at and acknowledged."""
    all_there = threading.Event()
    got = size = 0

    def heard(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        nonlocal got, size
        size += len(message.data())
        consumer.acknowledge(message)
        got += 1
        if got == options.count:
            all_there.set()

    extra: dict[str, Any] = {}
    if options.how == "listener":
        extra["message_listener"] = heard
    elif options.how == "batch":
        extra["batch_receive_policy"] = pulsar.ConsumerBatchReceivePolicy(500, -1, 100)
    part = Part()
    consumer = client.subscribe(
        options.topic,
        f"official-{time.time_ns()}",
        receiver_queue_size=options.queue,
        initial_position=pulsar.InitialPosition.Earliest,
        **extra,
    )
    if options.how == "listener":
        all_there.wait()
    while got < options.count:
        if options.how == "batch":
            for message in consumer.batch_receive():
                size += len(message.data())
                consumer.acknowledge(message)
                got += 1
        else:
            message = consumer.receive()
            size += len(message.data())
            consumer.acknowledge(message)
            got += 1
    return part.end(got, size=size)


def latency(client: pulsar.Client, options: Any) -> dict[str, Any]:
    """One send after the other, each waited for, without batching; so many as standard input says, turn by turn."""
    del options
    producer = client.create_producer(topic_name("official-latency"), batching_enabled=False)
    payload = bytes(100)
    send_in_turns(lambda: producer.send(payload))
    return {}


def main() -> None:
    """Do one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["produce", "consume", "latency"])
    parser.add_argument("url")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--delay-ms", type=int, default=10)
    parser.add_argument("--queue", type=int, default=1000)
    parser.add_argument("--how", choices=["receive", "batch", "listener"], default="receive")
    parser.add_argument("--topic")
    options = parser.parse_args()
    client = pulsar.Client(options.url, logger=QUIET)
    tell({"produce": produce, "consume": consume, "latency": latency}[options.what](client, options))
    client.close()


if __name__ == "__main__":
    main()
