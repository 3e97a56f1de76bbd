"""`ackSubscription`: the cursor of a subscription moves in the transaction of the rows that were made of its messages.

So "acknowledged" means "the results are visible". The sink finds how far the source has read in the query's checkpoint.
Exactly-once delivery does not rest on this: it is for retention, and for people who look at the subscription's backlog.
"""

from __future__ import annotations

import asyncio
import json
import logging
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
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places, from_offset

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 50
_BUSY_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 0.1
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
    """Acknowledges in the sink's transactions. It keeps no consumer: the next micro-batch may be committed elsewhere."""

    def __init__(self, client: AsyncClient, subscription: str | None) -> None:
        self._client = client
        self._subscription = subscription or ""
        self._moved: set[str] = set()
        """Topic partitions that this process has acknowledged: there the subscription stands where we are."""

    async def acknowledge(self, places: Places, txn: AsyncTransaction) -> None:
        """Acknowledge everything up to these places. AckConflict when somebody else moves the cursor; StoreFailed."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: str, place: Place) -> None:
            async with at_once:
                await self._acknowledge(topic, place, txn)

        done = await asyncio.gather(*(one(topic, place) for topic, place in places.items()), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _acknowledge(self, topic: str, place: Place, txn: AsyncTransaction) -> None:
        try:
            async with await subscribe_soon(self._client, topic, self._subscription) as consumer:
                if topic not in self._moved and await _is_beyond(consumer, place):
                    text = "%s: subscription %s stands after %s (was it made at Latest?), so there is nothing to acknowledge"
                    logger.info(text, topic, self._subscription, list(place))
                    return
                await consumer.acknowledge_cumulative(MessageId(*place), txn=txn, receipt=True)
            self._moved.add(topic)
        except (TransactionConflict, ConsumerBusy) as error:
            raise AckConflict(
                f"{topic}: subscription {self._subscription} belongs to somebody else as well, who acknowledges "
                f"or consumes there: give the sink an ackSubscription of its own ({error})"
            ) from error
        except PulsarError as error:
            raise StoreFailed(f"acknowledging on {topic}: {error}") from error


async def _is_beyond(consumer: AsyncConsumer[bytes], place: Place) -> bool:
    """True if a subscription has acknowledged everything up to a place."""
    (position,) = (await consumer.committed(require_stable=False)).values()
    return bool(position.message_id.position >= place)


async def subscribe_soon(client: AsyncClient, topic: str, subscription: str) -> AsyncConsumer[bytes]:
    """A consumer for a moment. ConsumerBusy when somebody else is there also after a few seconds."""
    deadline = asyncio.get_running_loop().time() + _BUSY_SECONDS
    while True:
        try:
            return await client.subscribe(topic, subscription, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1)
        except ConsumerBusy:  # an attempt of ours that had no answer, or somebody who looks in
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
