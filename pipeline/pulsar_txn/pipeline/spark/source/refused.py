"""A stream whose options were refused, which says so at Spark's first call.

When `streamReader` itself raises, the clean-up of Spark's worker fails as well (it closes the reader that it did not get),
and the user reads `UnboundLocalError` as the last line of the error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.source.reader import PulsarStreamReader


class RefusedStreamReader(PulsarStreamReader):
    """Raises its error at every call but `stop`."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def __getstate__(self) -> dict[str, Any]:
        return {"_error": self._error}

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        del given, named
        raise self._error

    initialOffset = latestOffset = reportLatestOffset = partitions = read = commit = _refuse  # noqa: N815  # Spark's names
    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815  # Spark's names

    def stop(self) -> None:
        """Nothing was opened."""
