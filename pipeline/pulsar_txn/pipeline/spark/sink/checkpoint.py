"""Checkpoint of the query, as the sink reads it: which topics the micro-batch comes from, and up to where.

Spark writes `offsets/<batch id>` before any task runs: a line with a version, one with metadata, then the offset of each
source. Those of `format("pulsar")` are recognised by their form. The sink learns the folder only from the option
`checkpointLocation` of the writer; without it, or when it cannot be read from Python, the sink knows nothing of its source.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.source.offsets import from_offset

logger = logging.getLogger(__name__)

_LOCAL: Final = ("file://", "file:")
_unreadable: Final[set[str]] = set()
"""Folders that this process could not read: not tried again, because it may take long to fail."""


def source_ends(folder: str | None, batch_id: int) -> list[str]:
    """The offsets, as Spark keeps them, that a micro-batch ends with: one for each source of ours. Empty when unknown."""
    return [line for line in _offsets(folder, batch_id).splitlines() if _is_ours(line)]


def offsets_digest(folder: str | None, batch_id: int) -> str:
    """The same of all sources, short; empty when unknown. Spark writes it once, so every replay has the same."""
    text = _offsets(folder, batch_id)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def _offsets(folder: str | None, batch_id: int) -> str:
    if folder is None or folder in _unreadable:
        return ""
    try:
        return read_text(f"{folder.rstrip('/')}/offsets/{batch_id}")
    except (OSError, ValueError, ImportError) as error:
        _unreadable.add(folder)
        logger.warning("%s cannot be read, so the sink does not know what the query reads: %s", folder, error)
        return ""


def _is_ours(line: str) -> bool:
    try:
        offset = json.loads(line)
        return isinstance(offset, dict) and bool(from_offset(offset))
    except (ValueError, OptionError):
        return False


def read_text(path: str) -> str:
    """A file of the checkpoint: a local one, or one that pyarrow can open. OSError, ValueError, ImportError."""
    for prefix in _LOCAL:
        if path.startswith(prefix):
            path = "/" + path.removeprefix(prefix).lstrip("/")
            break
    if "://" not in path:
        return Path(path).read_text(encoding="utf-8")
    from pyarrow import fs  # its drivers take half a second to load

    system, inside = fs.FileSystem.from_uri(path)
    with system.open_input_stream(inside) as stream:
        return bytes(stream.read()).decode()


def check_not_read(targets: Iterable[str], ends: Iterable[str]) -> None:
    """OptionError when the query reads one of the topics that it writes to."""
    read = {_whole(topic) for end in ends for topic in from_offset(json.loads(end))}
    for target in targets:
        if _whole(target) in read:
            raise OptionError(
                f"the query reads {target} and writes to it, so each row would come back as its input, for ever. Nothing was "
                "written. Give the sink another topic (.option('topic', …) wins over a column 'topic', which the source "
                "fills with its own); or set allowSelfWrite=true if the query leaves out what it has written"
            )


def _whole(topic: str) -> str:
    """The full name of the topic that a partition belongs to."""
    return str(parse_topic(topic).base)
