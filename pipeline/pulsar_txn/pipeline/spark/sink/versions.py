"""`txnAppId` and `txnVersion`, Delta Lake's names: a batch job that is run again writes nothing again.

    df.write.format("pulsar").option("txnAppId", "nightly").option("txnVersion", "20260101")…

The marker says which version of the application was written last. Versions are numbers that grow, with gaps or without. It
also says where the versions before it went, so that one that is run again late is known.
"""

from __future__ import annotations

from typing import Final

import attrs

from pulsar_txn.pipeline.spark.errors import OptionError, SkipRefused
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.committer import SinkCommitter, Work, full_name, not_same_target
from pulsar_txn.pipeline.spark.sink.control import Marker

_KEPT: Final = 200
"""Versions whose targets a marker has."""


class VersionCommitter(SinkCommitter):
    """See `SinkCommitter`: what it counts is a version of an application, and there may be gaps."""

    def _is_published(self, work: Work) -> bool:
        last, version = self._last, work.batch_id
        if last is None or version > last.batch_id:
            return False
        if version == last.batch_id:
            why = not_same_target(last.target, last.rows, work)
        elif (target := last.earlier.get(str(version))) is not None:
            why = not_same_target(target, {}, work)
        else:
            why = f"the last one is {last.batch_id}: versions grow, and that {version} was written is not known"
            raise SkipRefused(f"{self.sink_id}, version {version}: {why}. Nothing was written; give this job a higher version")
        if why is not None:
            raise SkipRefused(f"{self.sink_id} has published version {version}, and {why}. Nothing was written")
        return True

    def _marker(self, work: Work, epoch: int, txn_id: str) -> Marker:
        marker, last = super()._marker(work, epoch, txn_id), self._last
        if last is None:
            return marker
        written = [full_name(topic) for topic in last.rows]
        target = last.target or (written[0] if len(written) == 1 else "")  # older versions kept no target
        known = {**last.earlier, str(last.batch_id): target}
        return attrs.evolve(marker, earlier=dict(list(known.items())[-_KEPT:]))


def version_of(options: Options) -> tuple[str, int] | None:
    """The sink's id and the version of a job; None when the job has none. OptionError for one without the other."""
    name, version = options.txn_app_id, options.txn_version
    if name is None and version is None:
        return None
    if name is None or version is None:
        raise OptionError("txnAppId and txnVersion go together: the version says which run of the application this is")
    return f"app/{name}", version
