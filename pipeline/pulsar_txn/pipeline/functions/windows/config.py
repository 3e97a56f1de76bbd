"""The section `windowConfig`, with Pulsar's keys."""

from __future__ import annotations

from typing import Any, Final, Self

import attrs

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions.sections import Read, section, text, whole

EMIT_INTERVAL_MS: Final = 1000


@attrs.frozen(kw_only=True)
class WindowConfig:
    """Messages that make a window: a number of them (`length_count`), or those of a time (`length_ms`)."""

    length_count: int | None = None
    length_ms: int | None = None
    slide_count: int | None = None
    """Messages after which the next window is due; without it windows do not overlap."""
    slide_ms: int | None = None
    late_data_topic: str | None = None
    """Topic of messages that come after their last window; without it they are acknowledged and counted."""
    max_lag_ms: int = 0
    """Time by which a message may be earlier than the newest one."""
    emit_interval_ms: int = EMIT_INTERVAL_MS
    """After this time without a message the runtime looks whether a window is due."""
    timestamp_extractor: str | None = None
    """A class with `extract_timestamp(input, message)`; without it the time of publishing counts."""

    @classmethod
    def parse(cls, key: str, value: Any) -> Self:
        """Read the section from the mapping under `key`."""
        given = {name: each for name, each in value.items() if name not in _IGNORED} if isinstance(value, dict) else value
        return section(cls, key, given, _KEYS)

    def __attrs_post_init__(self) -> None:
        if (self.length_count is None) == (self.length_ms is None):
            raise _wrong("one of windowLengthCount and windowLengthDurationMs is needed")
        if self.length_count is not None and self.slide_ms is not None:
            raise _wrong("slidingIntervalDurationMs does not go with windowLengthCount", "give slidingIntervalCount")
        if self.length_ms is not None and self.slide_count is not None:
            raise _wrong("slidingIntervalCount does not go with windowLengthDurationMs", "give slidingIntervalDurationMs")
        if self.slide > self.length:
            raise _wrong("the sliding interval is longer than the window", "messages between two windows would be lost")
        if self.length_count is not None and (self.timestamp_extractor or self.late_data_topic or self.max_lag_ms):
            raise _wrong("timestampExtractorClassName, lateDataTopic and maxLagMs need windowLengthDurationMs")
        if self.late_data_topic is not None and self.timestamp_extractor is None:
            raise _wrong(
                "lateDataTopic needs timestampExtractorClassName",
                "by the time of publishing nothing is late: a message that comes after its window is in the next one",
            )

    @property
    def length(self) -> int:
        """Messages, or milliseconds."""
        return self.length_count or self.length_ms or 0

    @property
    def slide(self) -> int:
        """Messages, or milliseconds, from one window to the next."""
        return self.slide_count or self.slide_ms or self.length

    @property
    def counts_overlapping(self) -> bool:
        """True if a message is in several windows, which depend on the order of the messages."""
        return self.length_count is not None and self.slide < self.length


_KEYS: Final[dict[str, tuple[str, Read]]] = {
    "windowLengthCount": ("length_count", whole(1)),
    "windowLengthDurationMs": ("length_ms", whole(1)),
    "slidingIntervalCount": ("slide_count", whole(1)),
    "slidingIntervalDurationMs": ("slide_ms", whole(1)),
    "lateDataTopic": ("late_data_topic", text),
    "maxLagMs": ("max_lag_ms", whole(0)),
    "watermarkEmitIntervalMs": ("emit_interval_ms", whole(1)),
    "timestampExtractorClassName": ("timestamp_extractor", text),
}
_IGNORED: Final = frozenset({"actualWindowFunctionClassName", "processingGuarantees"})
"""Values that Pulsar's own tools put there for Java."""


def _wrong(message: str, hint: str | None = None) -> InvalidConfiguration:
    return InvalidConfiguration(f"windowConfig: {message}", hint=hint)
