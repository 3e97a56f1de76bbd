"""Reader of one range of a topic partition: its whole messages, and a notice when some entries are gone.

A message in chunks belongs to the range that has its last chunk, also when it began before the range. `Patience` lets a query
survive a cluster that does not answer for a while. Lost messages are an error, or a warning when the option `failOnDataLoss`
is false.

Positions do not tell whether a gap is a loss: it may be the end of a ledger, transactions' markers, or entries of aborted
transactions. But a topic loses its oldest entries first. So while the entry before a gap is still there, nothing in the gap
was lost. It is looked for at once, in the background. When the topic now begins within the gap, the reader may have been too
late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import attrs

from pulsar_txn.client import EARLIEST_ID, AsyncClient, MessageId, OperationTimeout, PulsarError, TopicNotFound
from pulsar_txn.client.encoded import AsyncEntryReader, OnGap, OpenedEntry, RawEntry, join_chunks, open_entry, open_entry_reader
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline.spark.errors import DataLossError, UnreadableEntry
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place

Parts = dict[int, bytes]
"""Chunks of one message by their number."""


class Chunks:
    """Collects the chunks of one range. A message belongs to the range that has its last chunk."""

    def __init__(self, earlier: Callable[[str, int], Parts]) -> None:
        """`earlier(uuid, first)`: the chunks before number `first`, from before the range; without those that are gone."""
        self._earlier = earlier
        self._parts: dict[str, Parts] = {}

    def whole(self, entry: OpenedEntry) -> OpenedEntry | None:
        """The message as an entry when this is its last chunk; None before, and where a part of it is gone."""
        metadata = entry.metadata
        number, total = metadata.chunk_id, metadata.num_chunks_from_msg
        if number == 0:
            self._parts[metadata.uuid] = {}
        parts = self._parts.setdefault(metadata.uuid, {})
        parts[number] = bytes(entry.payload)
        if number < total - 1:
            return None
        del self._parts[metadata.uuid]
        first = min(parts)
        if first > 0:
            parts = self._earlier(metadata.uuid, first) | parts
        if len(parts) < total:
            return None
        return OpenedEntry(metadata, join_chunks(metadata, [parts[number] for number in range(total)]), 0)


logger = logging.getLogger(__name__)

T = TypeVar("T")
_CLUSTER_PAUSE_SECONDS: Final = 0.5
_ATTEMPT_SECONDS: Final = 10.0
_BRIEF_SECONDS: Final = 2.0


def is_passing(error: BaseException) -> bool:
    """True if asking again may help."""
    if isinstance(error, ConsumerBusy):
        return True  # an attempt of ours that had no answer, or a monitor that looks at a subscription
    return isinstance(error, TimeoutError) or (isinstance(error, PulsarError) and error.retriable)


class Patience:
    """Time since the cluster answered last, and the limit for it."""

    def __init__(self, fail_after_ms: int, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = fail_after_ms / 1000
        self._now = now
        self._since: float | None = None

    @property
    def waited(self) -> float:
        """Seconds since the first failure after the last success; 0 while all is well."""
        return 0.0 if self._since is None else self._now() - self._since

    def failed(self, error: BaseException, what: str) -> None:
        """Record a failure. Raises the error when it is not a passing one, or when the trouble lasts too long."""
        if not is_passing(error):
            raise error
        if self._since is None:
            self._since = self._now()
            logger.warning("%s: %s; the query tries again for %g s (failAfterMs)", what, error, self._seconds)
        if self.waited >= self._seconds:
            error.add_note(f"{what}: given up after {self.waited:.0f} s (failAfterMs)")
            raise error

    def worked(self) -> None:
        """The cluster has answered."""
        if self._since is not None:
            logger.warning("the cluster answers again, after %.1f s", self.waited)
            self._since = None

    async def attempt(self, attempt: Callable[[], Awaitable[T]], what: str) -> T | None:
        """`attempt()` once, and briefly; None, after a pause, when it fails in passing. Raises as `insist`."""
        try:
            found = await _within(_BRIEF_SECONDS, attempt)
        except Exception as error:  # noqa: BLE001  # `failed` raises what is final
            self.failed(error, what)
            await asyncio.sleep(_CLUSTER_PAUSE_SECONDS)
            return None
        self.worked()
        return found

    async def insist(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        """`attempt()` until it succeeds, fails for good, or has failed for too long."""
        while True:
            try:
                found = await _within(min(_ATTEMPT_SECONDS, self._seconds), attempt)
            except Exception as error:  # noqa: BLE001  # `failed` raises what is final
                self.failed(error, what)
            else:
                self.worked()
                return found
            await asyncio.sleep(_CLUSTER_PAUSE_SECONDS)


async def _within(seconds: float, attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await attempt()
    except TimeoutError as error:
        if isinstance(error, PulsarError):
            raise
        raise OperationTimeout(f"no answer within {seconds:g} s") from None


def report_loss(options: Options, text: str) -> None:
    """Report lost messages: raise DataLossError, or log a warning when the option `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}: retention, expiry or a deleted topic took what was not processed; failOnDataLoss=false goes on without "
            "it, and subscriptionName keeps it from happening"
        )
    logger.warning("%s; going on, as failOnDataLoss=false says", text)


def report_gone(options: Options, text: str) -> None:
    """Report a deleted topic: raise DataLossError, or log a warning as above."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. failOnDataLoss=false goes on without the topic")
    logger.warning("%s; going on without it, as failOnDataLoss=false says", text)


def report_unreadable(options: Options, text: str) -> None:
    """Report an unreadable entry: raise UnreadableEntry, or log a warning as above."""
    if options.fail_on_data_loss:
        raise UnreadableEntry(
            f"{text}. The entry is still in the topic. The source has no keys to decrypt with; failOnDataLoss=false leaves "
            "such entries out, and logs them"
        )
    logger.warning("%s; it is left out, as failOnDataLoss=false says", text)


_GAP_PAUSE_SECONDS: Final = 0.25
"""Between two looks: a topic with transactions has many gaps, and one look answers for all that came meanwhile."""

Gap = tuple[Place, Place]


class Gaps:
    """The gaps of one range. Use it on the client's loop."""

    def __init__(self, first_visible: Callable[[Place], Awaitable[Place | None]]) -> None:
        """`first_visible(place)`: the first visible entry from `place` on that is there now."""
        self._first_visible = first_visible
        self._unknown: list[Gap] = []
        self._lost: list[Gap] = []
        self._looking: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def add(self, before: Place, after: Place) -> None:
        """The entry `after` came next after `before`."""
        self._unknown.append((before, after))
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._unknown:
            gaps, self._unknown = self._unknown, []
            first = await self._first_visible(gaps[0][0])
            self._lost += [gap for gap in gaps if first is not None and gap[0] < first <= gap[1]]
            if not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GAP_PAUSE_SECONDS):
                        await self._hurry.wait()
        self._looking = None

    def lost(self) -> list[Gap]:
        """Gaps in which entries may be missing, as far as is known; each is told once. Raises what ended the looking."""
        if self._looking is not None and self._looking.done():
            self._looking.result()
        lost, self._lost = self._lost, []
        return lost

    async def settled(self) -> list[Gap]:
        """The same, once all gaps were looked at."""
        self._hurry.set()
        if self._looking is not None:
            await self._looking
        return self.lost()

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking.cancelled() or self._looking.exception()  # nobody asks for it any more


_SLICE_SECONDS: Final = 1.0
_TAKE_BYTES: Final = 4 * 1024 * 1024
_LOOK_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 5.0
_BACK_ENTRIES: Final = 256
"""Entries before a range in which the beginning of a message in chunks is looked for at first."""


@attrs.frozen
class Range:
    """A topic partition from after one entry up to and with another.

    `next_known` is the first visible entry after `start`. Without `ends_visibly` the end is a place by time, and perhaps not
    that of an entry that readers see.
    """

    topic: str
    start: Place
    end: Place
    next_known: Place | None = None
    ends_visibly: bool = True


async def reader_at(
    client: AsyncClient, topic: str, place: Place, *, queue_bytes: int, most: int = 0, on_gap: OnGap | None = None
) -> AsyncEntryReader:
    """A reader that begins with the entry `place`, or with the first one when nothing was read yet."""
    first = EARLIEST_ID if place == NOTHING else MessageId(*place)
    return await open_entry_reader(client, topic, first, queue_bytes=queue_bytes, most=most, on_gap=on_gap)


async def first_visible(client: AsyncClient, topic: str, place: Place) -> Place | None:
    """The first visible entry from `place` on that is there; None when none comes soon."""
    reader = await reader_at(client, topic, place, queue_bytes=_LOOK_BYTES, most=1)
    try:
        found = await reader.take(1, _LOOK_SECONDS)
    finally:
        await reader.close()
    return found[0].position if found else None


class RangeReader:
    """Reads the entries of a range, in their order. Use it on the client's loop.

    It begins with the last entry that was read before: the topic loses its oldest entries first, so nothing after an entry
    that is still there is missing.
    """

    def __init__(self, client: AsyncClient, options: Options, wanted: Range) -> None:
        self._client = client
        self._options = options
        self._wanted = wanted
        self._place = wanted.start
        self._reader: AsyncEntryReader | None = None
        self._start_is_checked = wanted.start == NOTHING
        self._done = wanted.start >= wanted.end
        self._patience = Patience(options.fail_after_ms)
        self._gaps = Gaps(self._first_visible)

    @property
    def is_done(self) -> bool:
        """True if everything has been handed out; then `next` need not be asked."""
        return self._done

    async def next(self) -> list[RawEntry]:
        """Some more entries; empty at the end. DataLossError when the end cannot be reached any more, or entries are gone."""
        inside = await self._next()
        self._report_gaps(await self._gaps.settled() if self._done else self._gaps.lost())
        return inside

    async def _next(self) -> list[RawEntry]:
        waited = 0.0
        while not self._done:
            if self._reader is None and not await self._opened():
                break
            assert self._reader is not None  # noqa: S101  # opened above
            entries = await self._reader.take(_TAKE_BYTES, _SLICE_SECONDS)
            if not entries:
                waited += _SLICE_SECONDS
                await self._check_stalled(waited)
                continue
            self._patience.worked()
            if inside := self._inside(entries):
                return inside
        return []

    async def _opened(self) -> bool:
        """True if the topic is there to be read."""
        try:
            self._reader = await self._patience.insist(lambda: self._open(self._place), f"opening {self._wanted.topic}")
        except TopicNotFound:
            report_loss(self._options, f"{self._wanted.topic} is gone")
            self._done = True
        return not self._done

    async def _open(self, place: Place) -> AsyncEntryReader:
        size = self._options.receiver_queue_bytes
        return await reader_at(self._client, self._wanted.topic, place, queue_bytes=size, on_gap=self._gap)

    def _gap(self, before: Place, after: Place) -> None:
        """Entries do not follow each other. Those after the end of the range may be what they want."""
        if before < self._wanted.end:
            self._gaps.add(before, after)

    async def _first_visible(self, place: Place) -> Place | None:
        topic = self._wanted.topic
        try:
            return await self._patience.insist(lambda: first_visible(self._client, topic, place), f"looking into {topic}")
        except TopicNotFound:
            return None  # whoever reads on says so

    def _report_gaps(self, lost: Sequence[tuple[Place, Place]]) -> None:
        for before, after in lost:
            report_loss(
                self._options,
                f"{self._wanted.topic} lost its first entries while they were read: {before} is gone, the first entry now is "
                f"{after}, and what was between them may be missing",
            )

    def _inside(self, entries: list[RawEntry]) -> list[RawEntry]:
        """Entries that belong to the range; notices its start and its end."""
        wanted = self._wanted
        if not self._start_is_checked:
            self._check_start(entries[0].position)
        inside = [entry for entry in entries if self._place < entry.position <= wanted.end]
        if inside:
            self._place = inside[-1].position
        self._done = entries[-1].position >= wanted.end
        if self._done and self._place < wanted.end and wanted.ends_visibly:
            self._report_end()
        return inside

    def _check_start(self, first: Place) -> None:
        """The first entry that came should be the last one that was read before."""
        self._start_is_checked = True
        start = self._wanted.start
        if first <= start or first in (self._wanted.next_known, (start[0], start[1] + 1)):
            return
        missing = f"up to {first[1] - start[1] - 1} entries" if first[0] == start[0] else "an unknown number of entries"
        report_loss(
            self._options,
            f"{self._wanted.topic}: {start}, which was read last, is gone; the first entry now is {first}, so {missing} "
            "between them may be missing",
        )

    async def _check_stalled(self, waited: float) -> None:
        """Nothing has come for a while: because the broker is away, or because there is nothing more?"""
        reader = self._reader
        assert reader is not None  # noqa: S101  # it was opened by `next`
        if not reader.is_connected:
            if isinstance(reader.trouble, TopicNotFound):
                report_loss(self._options, f"{self._wanted.topic} is gone")
                self._done = True
            elif reader.trouble is not None:
                self._patience.failed(reader.trouble, f"reading {self._wanted.topic}")
            return
        last = await self._patience.insist(reader.last_message_id, f"asking for the end of {self._wanted.topic}")
        if last.position <= self._place or last.entry_id < 0:
            self._report_end()
            self._done = True
        elif waited * 1000 >= self._options.poll_timeout_ms:
            raise OperationTimeout(
                f"{self._wanted.topic}: nothing came after {self._place} for {waited:g} s, though {self._wanted.end} should be "
                "there"
            )

    async def earlier_chunks(self, uuid: str, first: int) -> Parts:
        """The chunks of a message before number `first`, from before the range. Reports the loss of those that are gone."""
        ledger_id, entry_id = self._wanted.start
        found: Parts = {}
        back = _BACK_ENTRIES
        while len(found) < first and entry_id >= 0:
            found = await self._chunks_between(uuid, (ledger_id, max(0, entry_id - back)), self._wanted.start)
            if back > entry_id:
                break
            back *= 8
        if any(number not in found for number in range(first)):
            report_loss(self._options, f"{self._wanted.topic}: the first chunks of the message {uuid} are gone")
        return {number: data for number, data in found.items() if number < first}

    async def _chunks_between(self, uuid: str, first: Place, last: Place) -> Parts:
        size, topic = self._options.receiver_queue_bytes, self._wanted.topic
        reader = await self._patience.insist(
            lambda: reader_at(self._client, topic, first, queue_bytes=size), f"opening {topic}"
        )
        found: Parts = {}
        try:
            while entries := await reader.take(_TAKE_BYTES, self._options.poll_timeout_ms / 1000):
                for entry in entries:
                    if entry.position > last:
                        return found
                    opened = open_entry(entry.data)
                    if opened.metadata.uuid == uuid:
                        found[opened.metadata.chunk_id] = bytes(opened.payload)
                if entries[-1].position >= last:
                    return found
        finally:
            await reader.close()
        return found

    def _report_end(self) -> None:
        report_loss(self._options, f"{self._wanted.topic}: messages after {self._place} up to {self._wanted.end} are missing")

    async def close(self) -> None:
        """Close the reader."""
        await self._gaps.close()
        if self._reader is not None:
            await self._reader.close()
