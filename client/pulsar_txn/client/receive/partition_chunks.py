"""What one topic partition's consumer does about entries that are not messages by themselves, or that it cannot take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pulsar_txn.client.receive.entry_checks import BeyondUsError
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.partition_acks import PartitionAcks
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.client.consumer")

LEAST_PAUSE: Final = 0.1
"""Seconds at least before chunks that were given up are asked for again: there is no room for them yet."""

ASKED_TOGETHER: Final = 10_000


class PartitionChunks(PartitionAcks):
    """The part of `PartitionConsumer` that puts chunks together. The attributes are set there."""

    _chunk_timer: asyncio.Handle | None
    _evicted: list[Position]
    _evicted_timer: asyncio.Handle | None
    _warned_of_beyond: bool

    def _on_chunk(self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes | None:
        """The whole payload when this was the last chunk. What stays incomplete for too long is acknowledged and gone."""
        options, runtime = self._options, self._core.runtime
        whole, given_up = self.chunks.add(position, metadata, payload, runtime.monotonic())
        if given_up:
            self._on_evicted(given_up)
        if self._chunk_timer is None and self.chunks.incomplete and options.expire_incomplete_chunks:
            self._chunk_timer = runtime.call_later(options.expire_incomplete_chunks, self._expire_chunks)
        return whole

    def _on_evicted(self, positions: Sequence[Position]) -> None:
        """Chunks for which there was no room: with the option acknowledged; else asked for again where that is possible."""
        if self._options.auto_ack_oldest_chunked_message:
            self._give_up_chunks(positions)
            return
        self.chunks.left.add(positions)
        if self._single:  # asking would bring everything back, in the same order
            return
        self._evicted += positions
        if len(self._evicted) >= ASKED_TOGETHER:
            self._ask_for_evicted()
        elif self._evicted_timer is None:
            delay = max(self._options.negative_ack_delay, LEAST_PAUSE)
            self._evicted_timer = self._core.runtime.call_later(delay, self._ask_for_evicted)

    def _ask_for_evicted(self) -> None:
        self._cancel_evicted()
        positions, self._evicted = self._evicted, []
        if positions and self._connection is not None:
            self.redeliver(positions)

    def _cancel_evicted(self) -> None:
        if self._evicted_timer is not None:
            self._evicted_timer.cancel()
            self._evicted_timer = None

    def _expire_chunks(self) -> None:
        self._chunk_timer = None
        period = self._options.expire_incomplete_chunks
        self._give_up_chunks(self.chunks.expire(self._core.runtime.monotonic() - period))
        if self.chunks.incomplete:
            self._chunk_timer = self._core.runtime.call_later(period, self._expire_chunks)

    def _give_up_chunks(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self.ack_soon((position, -1, 0))

    def _leave(self, position: Position, error: BeyondUsError) -> None:
        """An entry that is fine, but not for this program: it stays with the broker, for one that takes it."""
        self.chunks.left.add(self.chunks.with_chunks([position]))
        level = logging.WARNING if self._warned_of_beyond else logging.ERROR
        self._warned_of_beyond = True
        logger.log(
            level,
            "%s %s stays unacknowledged, and is not handed out: %s; or acknowledge its id to be rid of it",
            self.topic,
            position,
            error,
        )


def watches(options: ConsumerOptions) -> bool:
    """Whether a cumulative acknowledgement of such a subscription can take along what was left."""
    return options.durable and options.consumer_type.is_single
