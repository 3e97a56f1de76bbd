"""`txnAppId` and `txnVersion`, Delta Lake's names: a batch job that is run again writes nothing again.

    df.write.format("pulsar").option("txnAppId", "nightly").option("txnVersion", "20260101")…

The marker says which version of the application was written last. Versions are numbers that grow, with gaps or without.
"""

from __future__ import annotations

from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.committer import SinkCommitter


class VersionCommitter(SinkCommitter):
    """See `SinkCommitter`: what it counts is a version of an application, and there may be gaps."""

    def _is_published(self, batch_id: int) -> bool:
        return self._last is not None and self._last.batch_id >= batch_id


def version_of(options: Options) -> tuple[str, int] | None:
    """The sink's id and the version of a job; None when the job has none. OptionError for one without the other."""
    name, version = options.txn_app_id, options.txn_version
    if name is None and version is None:
        return None
    if name is None or version is None:
        raise OptionError("txnAppId and txnVersion go together: the version says which run of the application this is")
    return f"app/{name}", version
