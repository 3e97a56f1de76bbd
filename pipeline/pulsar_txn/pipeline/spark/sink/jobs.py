"""The commit of `write_batch`: the rows are sent by a Spark job of its own, in the transaction of the marker.

    publish     NewTxn, Intent; RunJob: all tasks send in this one transaction; the marker with the rows that they counted; END
    doubt       as in `committer`. A job that failed leaves some rows in the transaction, so it is aborted, and the whole job
                runs again in another one

One transaction for several tasks is right only because the job belongs to us: as a barrier job it fails as a whole, no task
of it is tried again by Spark, and nobody sends any more when it has succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pulsar_txn.pipeline.spark.sink.committer import SinkCommitter, Steps
from pulsar_txn.pipeline.spark.sink.control import Marker, Place, RunJob, WriteRecord


class JobCommitter(SinkCommitter):
    """See `SinkCommitter`. The rows of a `Work` are not known before the job has run."""

    def _fill(self, marker: Marker, places: Sequence[Place]) -> Steps:
        del places
        rows: dict[str, int] = yield RunJob(marker.txn_id)
        yield WriteRecord(attrs.evolve(marker, rows=rows), txn_id=marker.txn_id)
