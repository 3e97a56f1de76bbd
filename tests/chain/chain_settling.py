"""A consumer of a worker's beats: it acknowledges in a transaction, aborts that, and acknowledges the same messages plainly.

Stock brokers lost the last of the three (apache/pulsar#26616). What it has settled must not come to any consumer that
subscribes later: the next incarnation, or the official client at the end.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

from chain_recorder import TIMEOUT, Transactions, position_of
from history_format import HistoryWriter, decode_payload

from pulsar_txn.client import AsyncClient, AsyncConsumer, AsyncTransaction, ConsumerType, InitialPosition, Message, PulsarError

SETTLED: Final = "settled"
"""The subscription; Shared, because a predecessor may still be there."""
WAIT: Final = 0.2
TAKEN: Final = 4
AGAIN_SECONDS: Final = 0.2


class Settling:
    """One consumer after the other, in one incarnation of a worker."""

    def __init__(
        self,
        client: AsyncClient,
        writer: HistoryWriter,
        transactions: Transactions,
        topic: str,
        rng: random.Random,
        stop: asyncio.Event,
    ) -> None:
        self._client = client
        self._writer = writer
        self._transactions = transactions
        self._topic = topic
        self._rng = rng
        self._stop = stop
        name = f"{writer.process}.{SETTLED}"
        self._source: dict[str, Any] = {"topic": topic, "partition": -1, "subscription": SETTLED, "consumer": name}

    async def run(self) -> None:
        """Until it is to stop."""
        options: dict[str, Any] = {"consumer_type": ConsumerType.SHARED, "initial_position": InitialPosition.EARLIEST}
        while not self._stop.is_set():
            op, joined = self._writer.invoke("subscribe", **self._source, mode="Shared", initial="earliest"), False
            try:
                async with await self._client.subscribe(self._topic, SETTLED, **options) as consumer:
                    self._writer.ok(op)
                    joined = True
                    while not self._stop.is_set():
                        messages = await consumer.receive_many(self._rng.randint(1, TAKEN), max_wait=WAIT)
                        if messages:
                            await self._settle(consumer, messages)
            except PulsarError as error:
                if not joined:
                    self._writer.info(op, error=repr(error))
                print(f"{self._writer.process} settling: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _settle(self, consumer: AsyncConsumer[bytes], messages: Sequence[Message[bytes]]) -> None:
        for message in messages:
            found = {"position": position_of(message.message_id), "payload": decode_payload(message.data)}
            self._writer.event("deliver", **self._source, **found, reader=None, redeliveries=message.redelivery_count)
        await self._acknowledge_in_vain(consumer, messages)
        ids = [message.message_id for message in messages]
        op = self._acknowledging(messages, None)
        try:
            await consumer.acknowledge(ids, receipt=True)
        except PulsarError as error:
            self._writer.info(op, error=repr(error))
            consumer.give_back(messages)
        else:
            self._writer.ok(op)

    async def _acknowledge_in_vain(self, consumer: AsyncConsumer[bytes], messages: Sequence[Message[bytes]]) -> None:
        name = self._transactions.begin(TIMEOUT)
        try:
            txn = await self._client.begin_transaction(timeout=TIMEOUT, name=name)
        except PulsarError:
            self._transactions.failed(name)
            return
        op = self._acknowledging(messages, name)
        try:
            await consumer.acknowledge(messages, txn=txn)
        except PulsarError as error:
            self._writer.info(op, error=repr(error))
        else:
            self._writer.ok(op)
        await self._abort(txn)

    async def _abort(self, txn: AsyncTransaction) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.02)))
        try:
            await txn.abort()
        except PulsarError:  # it is aborted at its timeout; the plain acknowledgement counts all the same
            self._transactions.gave_up(txn)

    def _acknowledging(self, messages: Sequence[Message[bytes]], txn: str | None) -> int:
        positions = [position_of(message.message_id) for message in messages]
        return self._writer.invoke("ack", **self._source, positions=positions, kind="individual", txn=txn)
