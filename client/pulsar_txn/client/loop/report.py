"""Reports of a pipeline on its work: the log, its observer, and the counts of its result.

An aborted transaction is tried again, so nobody else may ever hear of its error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_txn.client._tracebacks import ErrorKinds
from pulsar_txn.client.loop.options import PipelineEvent, PipelineResult
from pulsar_txn.client.receive.message import Message

logger = logging.getLogger("pulsar_txn.client.pipeline")


class Report:
    """The counts of one pipeline, and the observer of its events."""

    def __init__(self, observer: Callable[[PipelineEvent], object] | None, *, skips: bool) -> None:
        self._observer = observer
        self._skips = skips
        self._kinds = ErrorKinds()
        self._counts = dict.fromkeys(("committed", "aborted", "messages", "dead_lettered", "skipped"), 0)

    def result(self) -> PipelineResult:
        """The counts so far."""
        return PipelineResult(**self._counts)

    def committed(self, group: Sequence[Message[Any]]) -> None:
        """A group is done."""
        self._counts["messages"] += len(group)
        self._count("committed", "committed", group)

    def aborted(self, group: Sequence[Message[Any]], error: BaseException) -> None:
        """A group was aborted."""
        first = group[0]
        what = f"a transaction of {len(group)} messages, from {first.message_id} of {first.topic} on, was aborted"
        self._kinds.tell(logger, what, error)
        self._count("aborted", "aborted", group, error)

    def removed(self, group: Sequence[Message[Any]], error: BaseException) -> None:
        """A poison message is out of the way."""
        message = group[0]
        kind, count = ("skipped", "skipped") if self._skips else ("dead_letter", "dead_lettered")
        logger.warning("message %s of %s: %s after %s", message.message_id, message.topic, kind, error)
        self._count(count, kind, group, error)

    def _count(self, count: str, kind: str, group: Sequence[Message[Any]], error: BaseException | None = None) -> None:
        self._counts[count] += 1
        if self._observer is not None:
            try:
                self._observer(PipelineEvent(kind, tuple(group), error))
            except Exception:  # an observer must not break what it observes
                logger.exception("the observer %r failed", self._observer)
