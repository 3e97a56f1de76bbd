"""Command line of pulsar-txn whose coordinator beside clusters ends itself at the point of `examples/flights/broker_crash.py`.

`python crashing_coordinator.py coordinator …`, with the environment that is written there. A test hands `PROGRAM` and
`environment` to `OurCoordinator`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final
from unittest import mock

PROGRAM: Final = (__file__,)


def environment(log: Path, nth: int = 1) -> dict[str, str]:
    """Let commit number `nth` kill it; `log` gets a line with what was in flight."""
    return {
        "PULSAR_TXN_CRASH_POINT": "broker.before_last_marker",
        "PULSAR_TXN_CRASH_LOG": str(log),
        "PULSAR_TXN_CRASH_NTH": str(nth),
    }


def _main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "flights"))
    from broker_crash import armed

    from pulsar_txn.broker.cli import main
    from pulsar_txn.tc_service.server import service

    incarnations = service.LogIncarnations

    def with_armed_clusters(claims: Any, runtime: Any, participants: Any, **options: Any) -> Any:
        return incarnations(claims, runtime, armed(participants, runtime, os.environ), **options)

    with mock.patch.object(service, "LogIncarnations", with_armed_clusters):
        main()


if __name__ == "__main__":
    _main()
