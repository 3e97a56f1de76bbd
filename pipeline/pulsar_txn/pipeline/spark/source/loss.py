"""Loss of what the query cannot process: an error, or a warning when the option `failOnDataLoss` is false."""

from __future__ import annotations

import logging

from pulsar_txn.pipeline.spark.errors import DataLossError, UnreadableEntry
from pulsar_txn.pipeline.spark.options import Options

logger = logging.getLogger(__name__)


def report_loss(options: Options, text: str) -> None:
    """Messages are gone. Raise DataLossError, or log a warning when the option `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}: retention, expiry or a deleted topic took what was not processed; failOnDataLoss=false goes on without "
            "it, and subscriptionName keeps it from happening"
        )
    logger.warning("%s; going on, as failOnDataLoss=false says", text)


def report_gone(options: Options, text: str) -> None:
    """A topic is gone. Raise DataLossError, or log a warning as above."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. failOnDataLoss=false goes on without the topic")
    logger.warning("%s; going on without it, as failOnDataLoss=false says", text)


def report_unreadable(options: Options, text: str) -> None:
    """An entry is there, and cannot be read. Raise UnreadableEntry, or log a warning as above."""
    if options.fail_on_data_loss:
        raise UnreadableEntry(
            f"{text}. The entry is still in the topic. The source has no keys to decrypt with; failOnDataLoss=false leaves "
            "such entries out, and logs them"
        )
    logger.warning("%s; it is left out, as failOnDataLoss=false says", text)
