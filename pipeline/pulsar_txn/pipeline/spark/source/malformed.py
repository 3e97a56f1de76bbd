"""Messages that do not fit the schema, or Spark's types, and what becomes of them by the option `mode`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pulsar_txn.pipeline.spark.errors import UndecodableValue
from pulsar_txn.pipeline.spark.schemas.casting import Unfit

logger = logging.getLogger(__name__)


class Malformed:
    """Counts them in one range of a topic partition; with FAILFAST the first one ends the query."""

    def __init__(self, topic: str, mode: str) -> None:
        self._topic = topic
        self._mode = mode
        self._count = 0

    @property
    def drops(self) -> bool:
        """True if their rows are left out."""
        return self._mode == "DROPMALFORMED"

    def settle(self, unfit: Unfit, message_id: Callable[[int], str]) -> None:
        """UndecodableValue, or a warning for the first of them."""
        first = min(unfit)
        error = unfit[first]
        where = f"{self._topic}: the message {message_id(first)} does not fit the query's columns"
        if self._mode == "FAILFAST":
            raise UndecodableValue(
                f"{where} ({error}); mode=PERMISSIVE reads null instead, and columnNameOfCorruptRecord keeps its bytes; "
                "with .schema(…) the query has only the columns that it needs"
            ) from error
        if not self._count:
            logger.warning("%s, and is %s: %s", where, "left out" if self.drops else "read as null", error)
        self._count += len(unfit)

    def finish(self) -> None:
        """Say how many there were."""
        if self._count:
            what = "left out" if self.drops else "read as null"
            text = "%s: %d messages of this range do not fit the query's columns, and were %s (mode=%s)"
            logger.warning(text, self._topic, self._count, what, self._mode)
