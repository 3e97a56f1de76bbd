"""Messages that are gone before they were processed: an error, or a warning when the option `failOnDataLoss` is false."""

from __future__ import annotations

import logging

from pulsar_txn.pipeline.spark.errors import DataLossError
from pulsar_txn.pipeline.spark.options import Options

logger = logging.getLogger(__name__)


def report_loss(options: Options, text: str) -> None:
    """Raise DataLossError, or log a warning when the option `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}: retention, expiry or a deleted topic took what was not processed; failOnDataLoss=false goes on without "
            "it, and subscriptionName keeps it from happening"
        )
    logger.warning("%s; going on, as failOnDataLoss=false says", text)
