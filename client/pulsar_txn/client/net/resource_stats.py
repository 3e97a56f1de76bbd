"""Statistics of a producer and a consumer so far, as plain values."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ProducerStats:
    """Since the producer was made; `bytes` are payloads before compression. What was answered has a receipt."""

    messages: int
    bytes: int
    answered: int
    failed: int
    in_flight_messages: int
    in_flight_bytes: int


@attrs.frozen(kw_only=True)
class ConsumerStats:
    """Since the consumer was made. Messages count again when they are received again; `queued` is a momentary value."""

    received: int
    acknowledged: int
    negatively_acknowledged: int
    queued: int
    connected_partitions: int
    partitions: int
