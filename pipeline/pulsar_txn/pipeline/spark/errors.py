"""Errors that source and sink raise on purpose; each message says what to do."""

from __future__ import annotations

from pulsar_txn.client.inside import shown


class SparkPulsarError(Exception):
    """Base of the errors of `format("pulsar")`."""


class OptionError(SparkPulsarError, ValueError):
    """An option, a column or an offset that cannot work; nothing was read or written. It shows no credentials."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


class DataLossError(SparkPulsarError):
    """Messages that the query has not processed are no longer there; see the option `failOnDataLoss`."""


class UnreadableEntry(DataLossError):
    """An entry is in the topic and cannot be read: it is encrypted, damaged, or newer than this program."""


class UndecodableValue(SparkPulsarError):
    """A message does not fit the topic's schema, or a column of its metadata; see the option `mode`."""


class SinkError(SparkPulsarError):
    """The sink could not commit a micro-batch. Spark ends the query; its restart replays the batch, once."""


class SinkFenced(SinkError):
    """A newer run of the same sink has taken over; this one must stop."""


class CheckpointOlderThanSink(SinkError):
    """The sink has published later micro-batches than the one it is given: the checkpoint was restored or copied."""


class ForeignCheckpoint(SinkError):
    """The sink's last micro-batch is of another query: a new checkpoint, or another query with the same sinkId."""


class SkipRefused(SinkError):
    """A number that was published before comes with work that is not provably the same; nothing was written."""


class PartitionsGrew(SinkError):
    """The tasks of a micro-batch saw different numbers of partitions of a topic; the replay sees one number."""


class SinkStateLost(SinkError):
    """The last marker of the sink does not fit the micro-batch: it expired, or the sink id is another query's."""


class AckConflict(SinkError):
    """Error: somebody else uses the subscription that the sink acknowledges (`ackSubscription`); nothing was published."""


class GroupRefused(SinkError):
    """The transactions of a micro-batch's tasks were over before its commit; nothing was published. The replay sends again."""


class RowsMissing(SinkError):
    """Fewer or more rows were sent than the tasks handed over; the transaction was aborted."""


class CommitUndecided(SinkError):
    """Error: nobody could say in time whether a transaction was committed. The replay decides."""


class StoreFailed(SinkError):
    """A request to Pulsar failed without an effect that could stay; the transaction can be aborted and tried again."""
