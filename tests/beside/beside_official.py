"""What the official client does in a fault run.

    python beside_official.py feed|follow|final PLAN.json PLACES.json FOLDER

`feed` writes the inputs, before anything else happens. `follow` consumes what workers write, while they work, and prints how
many different messages each topic has shown. `final` reads every partition from its first message, and takes what is left on
every subscription of the workers.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pulsar
from beside_plan import Hop, Plan, Topic, plan_of
from history_format import HistoryWriter, decode_payload, encode_payload, make_payload

WORKERS: Final = "workers"
FOLLOWERS: Final = "followers"
KEPT: Final = "kept"
KEYS: Final = 6
QUIET_MS: Final = 1500
"""How long a subscription says nothing before it is taken for empty."""
RECOVERY_SECONDS: Final = 90.0
TYPES: Final = {
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
Clients = Mapping[str, pulsar.Client]


class Listener:
    """Writes what one consumer or reader gets, to a history file of its own."""

    def __init__(self, folder: str, process: str, topic: Topic, subscription: str | None) -> None:
        self.writer = HistoryWriter(folder, process)
        self._cluster = topic.cluster
        self._who: dict[str, Any] = {"subscription": subscription}
        self._who |= {"consumer": process, "reader": None} if subscription else {"consumer": None, "reader": process}

    def deliver(self, message: Any) -> dict[str, Any]:
        """A message has come; its payload."""
        payload = decode_payload(message.data())
        id_ = message.message_id()
        position = [id_.ledger_id(), id_.entry_id(), id_.batch_index()]
        where = {"topic": f"{self._cluster}|{message.topic_name()}", "partition": -1, "position": position}
        self.writer.event("deliver", **where, **self._who, payload=payload, redeliveries=message.redelivery_count())
        return payload


def feed(clients: Clients, plan: Plan, topic: Topic, folder: str) -> None:
    """Write the inputs. All subscriptions are there before."""
    client = clients[topic.cluster]
    writer = HistoryWriter(folder, f"source-{topic.cluster}")
    name = topic.name.rpartition("/")[2]
    producers = [client.create_producer(part, block_if_queue_full=True, batching_enabled=False) for part in topic.parts]
    answered = threading.Semaphore(0)
    writing = threading.Lock()

    def noted(op: int, result: Any, id_: Any) -> None:
        assert result == pulsar.Result.Ok, result
        with writing:
            writer.ok(op, position=[id_.ledger_id(), id_.entry_id(), id_.batch_index()])
        answered.release()

    for number in range(plan.inputs):
        place = number % len(producers)
        who, part = f"{name}.{place}", [f"{topic.cluster}|{topic.parts[place]}", -1]
        payload = make_payload(who, number // len(producers), parts=[part]) | {"key": f"k{number % KEYS}"}
        seq = payload["seq"]
        with writing:
            op = writer.invoke("send", topic=part[0], partition=-1, producer=who, seq=seq, txn=None, payload=payload)
        producers[place].send_async(encode_payload(payload), functools.partial(noted, op), partition_key=payload["key"])
    for producer in producers:
        producer.flush()
    for _ in range(plan.inputs):
        answered.acquire()


class Progress:
    """How many different messages each topic has shown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def note(self, topic: Topic, count: int) -> None:
        """So many by now."""
        with self._lock:
            self._counts[topic.name] = count
            print(json.dumps(self._counts), flush=True)


def follow(clients: Clients, topic: Topic, folder: str, stop: threading.Event, progress: Progress) -> None:
    """Consume until `stop` is set."""
    listener = Listener(folder, f"follower-{topic.name.rpartition('/')[2]}", topic, FOLLOWERS)
    consumer = clients[topic.cluster].subscribe(topic.name, FOLLOWERS, initial_position=pulsar.InitialPosition.Earliest)
    seen: set[tuple[str, int]] = set()
    told = 0.0
    while not stop.is_set():
        if time.monotonic() > told + 1.0:
            told = time.monotonic()
            progress.note(topic, len(seen))
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        payload = listener.deliver(message)
        seen.add((payload["producer"], payload["seq"]))
        consumer.acknowledge(message)


def read_all(clients: Clients, topic: Topic, part: str, folder: str) -> None:
    """Read a partition from its first message to its end."""
    listener = Listener(folder, f"final-{part.rpartition('/')[2]}", topic, None)
    noted = f"{topic.cluster}|{part}"
    reader = opened_reader(clients[topic.cluster], part)
    op = listener.writer.invoke("final_read", topic=noted, partition=-1, reader=listener.writer.process)
    while reader.has_message_available():
        listener.deliver(reader.read_next(30_000))
    listener.writer.ok(op)
    reader.close()


def opened_reader(client: pulsar.Client, part: str) -> pulsar.Reader:
    """A reader of a partition, once its broker can say where the end is.

    Stock brokers that were killed twice refuse that for a while: "Failed to recover Transaction Buffer". Then they load the
    partition again.
    """
    until = time.monotonic() + RECOVERY_SECONDS
    while True:
        reader = client.create_reader(part, pulsar.MessageId.earliest)
        try:
            reader.has_message_available()
        except pulsar.PulsarException:
            reader.close()
            if time.monotonic() > until:
                raise
            time.sleep(1)
        else:
            return reader


def take_rest(clients: Clients, topic: Topic, hop: Hop, folder: str) -> None:
    """Take what nobody has acknowledged; in a run without a fault that is nothing."""
    for part in topic.parts:
        opened_reader(clients[topic.cluster], part).close()
    listener = Listener(folder, f"rest-{hop.source}", topic, WORKERS)
    ops = [listener.writer.invoke("final_read", topic=noted, partition=-1, subscription=WORKERS) for noted in topic.noted]
    consumer = clients[topic.cluster].subscribe(topic.name, WORKERS, consumer_type=TYPES[hop.mode])
    while True:
        try:
            listener.deliver(consumer.receive(QUIET_MS))
        except pulsar.Timeout:
            break
    for op in ops:
        listener.writer.ok(op)
    consumer.close()


def subscribe(clients: Clients, plan: Plan) -> None:
    """Make the subscriptions of the workers and the followers, before the first message."""
    for hop in plan.hops:
        topic = plan.topics[hop.source]
        first = pulsar.InitialPosition.Earliest
        clients[topic.cluster].subscribe(topic.name, WORKERS, TYPES[hop.mode], initial_position=first).close()
    for topic in plan.lasts:
        clients[topic.cluster].subscribe(topic.name, FOLLOWERS, initial_position=pulsar.InitialPosition.Earliest).close()
    for topic in plan.topics.values():  # keeps everything: what all others have acknowledged is deleted
        clients[topic.cluster].subscribe(topic.name, KEPT, initial_position=pulsar.InitialPosition.Earliest).close()


def open_clients(places: Mapping[str, Any]) -> dict[str, pulsar.Client]:
    """One of each cluster."""
    return {name: _client(each) for name, each in places["clusters"].items()}


def _client(cluster: Mapping[str, str]) -> pulsar.Client:
    options: dict[str, Any] = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)}
    if "token" in cluster:
        options["authentication"] = pulsar.AuthenticationToken(cluster["token"])
        options |= {"tls_trust_certs_file_path": cluster["authority"], "tls_validate_hostname": True}
    return pulsar.Client(cluster["url"], **options)


def main(arguments: Sequence[str]) -> None:
    """The program."""
    verb, plan_file, places_file, folder = arguments
    plan = plan_of(json.loads(Path(plan_file).read_text(encoding="utf-8")))
    clients = open_clients(json.loads(Path(places_file).read_text(encoding="utf-8")))
    if verb == "feed":
        subscribe(clients, plan)
        work = [functools.partial(feed, clients, plan, topic, folder) for topic in plan.firsts]
    elif verb == "follow":
        stop, progress = threading.Event(), Progress()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        work = [functools.partial(follow, clients, topic, folder, stop, progress) for topic in plan.lasts]
    else:
        work = [
            functools.partial(read_all, clients, topic, part, folder) for topic in plan.topics.values() for part in topic.parts
        ]
        work += [functools.partial(take_rest, clients, plan.topics[hop.source], hop, folder) for hop in plan.hops]
    with ThreadPoolExecutor(len(work)) as threads:
        done = [threads.submit(each) for each in work]
    for each in done:
        each.result()
    for client in clients.values():
        client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
