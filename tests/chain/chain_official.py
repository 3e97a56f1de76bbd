"""What the official client sees of the chains.

    python chain_official.py follow PHASE.json FOLDER SERVICE_URL
    python chain_official.py final PHASE.json FOLDER SERVICE_URL

`follow` consumes the last topic of every chain while the workers work, and prints `complete NAME` when as many different
messages have come out of a chain as go in. It goes on until SIGTERM: what comes after that may be a second copy.
`final` reads every topic from its first message, and takes what is left on every subscription.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pulsar
from chain_schedule import Chain, Phase, phase_of
from chain_settling import SETTLED
from history_format import HistoryWriter, decode_payload

FOLLOWER: Final = "followers"
WORKERS: Final = "workers"
QUIET_MS: Final = 1000
"""How long a subscription says nothing before it is taken for empty."""
_TYPES: Final = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


class Listener:
    """Writes what one consumer or reader gets, to a history file of its own: it may be the only one of its thread."""

    def __init__(self, folder: str, process: str, topic: str, subscription: str | None) -> None:
        self.writer = HistoryWriter(folder, process)
        self._source = {"topic": topic, "partition": -1, "subscription": subscription}
        self._source |= {"consumer": process, "reader": None} if subscription else {"consumer": None, "reader": process}

    def deliver(self, message: Any) -> dict[str, Any]:
        """A message has come; its payload."""
        payload = decode_payload(message.data())
        id_ = message.message_id()
        position = [id_.ledger_id(), id_.entry_id(), id_.batch_index()]
        redeliveries = message.redelivery_count()
        self.writer.event("deliver", **self._source, position=position, payload=payload, redeliveries=redeliveries)
        return payload


def follow(client: pulsar.Client, chain: Chain, folder: str, stop: threading.Event) -> None:
    """Consume the end of a chain until `stop` is set."""
    topic = chain.hops[-1].target
    listener = Listener(folder, f"follower-{chain.name}", topic, FOLLOWER)
    consumer = client.subscribe(topic, FOLLOWER, initial_position=pulsar.InitialPosition.Earliest)
    seen: set[tuple[str, int]] = set()
    while not stop.is_set():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        producer, seq = listener.deliver(message)["root"]
        consumer.acknowledge(message)
        if (producer, seq) not in seen:
            seen.add((producer, seq))
            if len(seen) == chain.messages:
                print("complete", chain.name, flush=True)


def read_all(client: pulsar.Client, topic: str, folder: str) -> None:
    """Read a topic from its first message to its end."""
    name = f"final-{_short(topic)}"
    listener = Listener(folder, name, topic, None)
    op = listener.writer.invoke("final_read", topic=topic, partition=-1, reader=name)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        listener.deliver(reader.read_next(10_000))
    listener.writer.ok(op)
    reader.close()


def take_rest(client: pulsar.Client, topic: str, subscription: str, mode: str, name: str, folder: str) -> None:
    """Take what nobody has acknowledged."""
    listener = Listener(folder, name, topic, subscription)
    where = {"topic": topic, "partition": -1, "subscription": subscription}
    op = listener.writer.invoke("subscribe", **where, consumer=name, mode=mode, initial="latest")
    consumer = client.subscribe(topic, subscription, consumer_type=_TYPES[mode])
    listener.writer.ok(op)
    op = listener.writer.invoke("final_read", **where)
    while True:
        try:
            listener.deliver(consumer.receive(QUIET_MS))
        except pulsar.Timeout:
            break
    listener.writer.ok(op)
    consumer.close()


def _work(phase: Phase, verb: str, client: pulsar.Client, folder: str) -> list[Callable[[], None]]:
    if verb == "follow":
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        return [functools.partial(follow, client, chain, folder, stop) for chain in phase.chains]
    hops = [hop for chain in phase.chains for hop in chain.hops]
    topics = sorted({topic for hop in hops for topic in (hop.source, hop.target)})
    beats = [worker.beats for worker in phase.workers if worker.beats is not None]
    topics += beats
    reads: list[Callable[[], None]] = [functools.partial(read_all, client, topic, folder) for topic in topics]
    # On the hops nothing is left. Of the beats there is what a worker had no time to settle.
    rest = [(hop.source, WORKERS, hop.mode, f"rest-{_short(hop.source)}") for hop in hops]
    rest += [(topic, SETTLED, "Shared", f"unsettled-{_short(topic)}") for topic in beats]
    return reads + [functools.partial(take_rest, client, *each, folder) for each in rest]


def _short(topic: str) -> str:
    return topic.rpartition("/")[2]


def main(arguments: Sequence[str]) -> None:
    """The program."""
    verb, phase_file, folder, url = arguments
    phase = phase_of(json.loads(Path(phase_file).read_text(encoding="utf-8")))
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    work = _work(phase, verb, client, folder)
    with ThreadPoolExecutor(len(work)) as threads:
        done = [threads.submit(each) for each in work]
    client.close()
    for each in done:
        each.result()


if __name__ == "__main__":
    main(sys.argv[1:])
