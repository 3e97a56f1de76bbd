"""Offsets by time: the place before the first message that was published at a time or later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.source.offsets import Place, Places

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = 30.0

Times = int | tuple[tuple[str, int], ...]


async def places_at(client: AsyncClient, times: Times, ends: Mapping[str, Place]) -> Places:
    """The place before each partition's first message of that time or later; its end when there is none.

    Partitions that `times` does not name are left out. OptionError for names of other topics. Use it on the client's loop.
    """
    wanted = dict.fromkeys(ends, times) if isinstance(times, int) else dict(times)
    if unknown := sorted(set(wanted) - set(ends)):
        raise OptionError(f"a time is given for {', '.join(unknown)}; this query reads {', '.join(sorted(ends))}")
    found = await asyncio.gather(*(_place(client, topic, time_ms, ends[topic]) for topic, time_ms in wanted.items()))
    return dict(zip(wanted, found, strict=True))


async def _place(client: AsyncClient, topic: str, time_ms: int, end: Place) -> Place:
    start = _EPOCH + timedelta(milliseconds=time_ms)
    async with await client.create_reader(topic, start, receiver_queue_size=1) as reader:
        if not await reader.has_message_available():
            return end
        while True:
            message = await reader.read_next(_SECONDS)
            ledger_id, entry_id = message.message_id.position
            if message.publish_time_ms >= time_ms or (ledger_id, entry_id) >= end:
                return min((ledger_id, entry_id - 1), end) if message.publish_time_ms >= time_ms else end
