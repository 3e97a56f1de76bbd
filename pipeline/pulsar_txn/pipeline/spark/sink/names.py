"""Names of a sink and of its topics: by the options, or from the query."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.spark.options import Options

ONLY: Final = "0"
"""The name of the only sink of a query."""
_NAME_CHARS: Final = 60


def sink_id(options: Options, query_id: str) -> str:
    """The sink's identity over restarts: the option, or the query (its id is in the checkpoint) and the sink's name."""
    return options.sink_id or f"{query_id or uuid.uuid4()}/{options.sink_name or ONLY}"


def frame_id(options: Options, query_id: str) -> str:
    """The identity of what one call of `write_batch` writes: without a name of its own, its topic belongs to it.

    The name of a control topic that the user has chosen tells frames apart as well.
    """
    if options.sink_id or options.sink_name or options.control_topic or not options.topics:
        return sink_id(options, query_id)
    topic = parse_topic(options.topics[0])
    return f"{query_id}/{topic.name[:_NAME_CHARS]}-{hashlib.sha256(str(topic).encode()).hexdigest()[:8]}"


def control_topic_of(options: Options, name: str) -> str:
    """The control topic of the sink `name`: the option `controlTopic`, or one that is named after it."""
    return options.control_topic or f"persistent://public/default/__spark_sink-{name.replace('/', '-')}"


def job_id(version: tuple[str, int] | None) -> str:
    """The identity of a batch job: that of its version, so that a second run of it clears up after a first one that died."""
    return f"job-{uuid.uuid4()}" if version is None else "job-{}-{}".format(*version)


def staging_topic_of(options: Options, name: str) -> str:
    """The staging topic of the sink `name`: the option `stagingTopic`, or one that is named after it."""
    return options.staging_topic or f"persistent://public/default/__spark_sink_stage-{name.replace('/', '-')}"
