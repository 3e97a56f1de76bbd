"""`ackSubscription`: the cursor of a subscription moves in the transaction of the rows that were made of its messages.

So "acknowledged" means "the results are visible". The sink finds how far the source has read in the query's checkpoint.
Exactly-once delivery does not rest on this: it is for retention, and for people who look at the subscription's backlog.
"""

from __future__ import annotations

import json
from typing import Final

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncTransaction,
    InitialPosition,
    MessageId,
    PulsarError,
    TransactionConflict,
)
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline.spark.errors import AckConflict, OptionError, StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.checkpoint import read_text, source_ends
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Places, from_offset

_HOW: Final = "ackSubscription needs the option checkpointLocation on the writer, in a folder that Python can read"


def check_checkpoint(options: Options, checkpoint: str | None) -> None:
    """OptionError before any task runs when the sink could not learn what to acknowledge."""
    if options.ack_subscription is None:
        return
    if checkpoint is None:
        raise OptionError(_HOW)
    try:
        read_text(f"{checkpoint.rstrip('/')}/metadata")
    except (OSError, ValueError, ImportError) as error:
        raise OptionError(f"{_HOW}: {error}") from error


def places_to_acknowledge(options: Options, checkpoint: str | None, batch_id: int) -> Places:
    """Up to where each topic partition is read by this micro-batch, where that is more than by the one before it."""
    if options.ack_subscription is None:
        return {}
    ends = _ends(checkpoint, batch_id)
    if not ends:
        raise OptionError(
            f"ackSubscription={options.ack_subscription}: the checkpoint names no topics that the query reads with "
            "format('pulsar'), so there is nothing to acknowledge: leave it out"
        )
    before = _ends(checkpoint, batch_id - 1) if batch_id else {}
    return {topic: place for topic, place in ends.items() if place > before.get(topic, NOTHING)}


def _ends(checkpoint: str | None, batch_id: int) -> Places:
    return {
        topic: place for text in source_ends(checkpoint, batch_id) for topic, place in from_offset(json.loads(text)).items()
    }


class SourceAcks:
    """Acknowledges in the sink's transactions. A consumer per topic partition is kept from micro-batch to micro-batch."""

    def __init__(self, client: AsyncClient, subscription: str | None) -> None:
        self._client = client
        self._subscription = subscription or ""
        self._consumers: dict[str, AsyncConsumer[bytes]] = {}

    async def acknowledge(self, places: Places, txn: AsyncTransaction) -> None:
        """Acknowledge everything up to these places. AckConflict when somebody else moves the cursor; StoreFailed."""
        for topic, (ledger_id, entry_id) in places.items():
            try:
                consumer = await self._consumer(topic)
                await consumer.acknowledge_cumulative(MessageId(ledger_id, entry_id), txn=txn, receipt=True)
            except (TransactionConflict, ConsumerBusy) as error:
                raise AckConflict(
                    f"{topic}: subscription {self._subscription} belongs to somebody else as well, who acknowledges "
                    f"or consumes there: give the sink an ackSubscription of its own ({error})"
                ) from error
            except PulsarError as error:
                raise StoreFailed(f"acknowledging on {topic}: {error}") from error

    async def _consumer(self, topic: str) -> AsyncConsumer[bytes]:
        found = self._consumers.get(topic)
        if found is None:
            found = self._consumers[topic] = await self._client.subscribe(
                topic, self._subscription, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1
            )
        return found

    async def close(self) -> None:
        """Close the consumers; the subscription stays."""
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            await consumer.close()
