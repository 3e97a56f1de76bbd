"""The protocol `grouped`: tasks send straight to the targets, each attempt in a transaction of its own.

Only the driver knows which attempts count: those whose messages Spark delivers to the commit. One record of the coordinator
then commits exactly their transactions and the one of the marker, and aborts what else the sink has open: attempts that
were truncated, failed, or lost against a twin. So no byte of the rows goes through the driver.

    take over   as in `committer`; `Fence` also makes an end of what older epochs of the sink's transactional id have open
    publish     NewTxn, marker; EndGroup with the transactions that were delivered
    doubt       as in `committer`. Delivered transactions cannot be filled again, so a group that was refused (one of them
                timed out, or a newer run has aborted it) ends the query, and the replay sends the rows again
    skip        a replay of what is published already: `Sweep` aborts what its tasks have sent
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pulsar_txn.pipeline.spark.errors import AckConflict, GroupRefused, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.sink.committer import Outcome, SinkCommitter, Steps, Work
from pulsar_txn.pipeline.spark.sink.control import Acknowledge, EndGroup, EndReply, EndTxn, NewTxn, Sweep, WriteRecord


@attrs.frozen
class GroupWork(Work):
    """A micro-batch whose rows are in the transactions `delivered`, which are open and of which nobody sends any more."""

    delivered: Sequence[str] = ()


class GroupedCommitter(SinkCommitter):
    """See `SinkCommitter`; its micro-batches are a `GroupWork` each."""

    def commit(self, work: Work) -> Steps:
        """Publish a micro-batch; returns an Outcome. GroupRefused when the transactions of its tasks are over."""
        outcome: Outcome = yield from super().commit(work)
        if outcome is Outcome.SKIPPED:
            yield Sweep()
        return outcome

    def _attempt(self, work: Work, epoch: int) -> Steps:
        assert isinstance(work, GroupWork)  # noqa: S101  # the writer makes it
        txn_id: str = yield NewTxn()
        marker = self._marker(work, epoch, txn_id)
        self._announced[txn_id] = None
        try:
            yield WriteRecord(marker, txn_id=txn_id)
            if work.acks:
                yield Acknowledge(txn_id, work.acks)
        except (AckConflict, SinkFenced):
            yield EndTxn(txn_id, commit=False)
            raise
        except StoreFailed:
            yield from self._read_up_to_now(epoch)
            return
        if (yield EndGroup(txn_id, work.delivered)) is EndReply.DONE:
            self._note(marker)
            return
        yield from self._read_up_to_now(epoch)
        if not self._is_published(work):
            raise GroupRefused(
                f"micro-batch {work.batch_id}: the transactions of its tasks are over, and nothing was published. "
                "Restart the query: the replay sends the rows again. If this comes again, a micro-batch takes longer than "
                "transactionTimeoutMs: raise that, or make micro-batches smaller"
            )
