"""`pulsar-txn` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

MAIN: Final = "from pulsar_txn.broker.cli import main; main()"


def pulsar_txn(
    *arguments: object, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run to the end. `env` comes on top of the environment."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=os.environ | dict(env or {}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
