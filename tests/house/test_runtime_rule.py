"""In broker, client and tc_service, clocks, randomness, sockets and threads are in `runtime.py` and nowhere else.

So a client and a broker run in one process, over in-memory pipes, on a virtual clock, with equal bytes for equal seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_rule import touches

pytestmark = pytest.mark.quick

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("room", ["broker", "client", "tc_service"])
def test_only_runtime_touches_clocks_randomness_sockets_and_threads(room: str) -> None:
    sources = sorted((CHECKOUT / room / "pulsar_txn" / room).rglob("*.py"))
    assert sources
    found = [
        f"{source.relative_to(CHECKOUT)}:{line}"
        for source in sources
        if source.name != "runtime.py"
        for line in touches(source.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(["these belong into runtime.py of their room:", *found])


@pytest.mark.parametrize("room", ["broker", "client"])
def test_a_room_has_one_runtime(room: str) -> None:
    assert len(list((CHECKOUT / room / "pulsar_txn" / room).rglob("runtime.py"))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import random as r",
        "from uuid import uuid4",
        "import os\nos.urandom(8)",
        "from os import urandom",
        "import os as system\nsystem.urandom(8)",
        "import socket",
        "def f():\n    import threading",
        "from concurrent.futures import ThreadPoolExecutor",
        "from concurrent import futures",
        "import asyncio\nasyncio.open_connection('h', 1)",
        "from asyncio import start_server",
        "import asyncio as a\na.to_thread(print)",
        "loop.create_connection(f, 'h', 1)",
        "import asyncio\nasyncio.get_running_loop().run_in_executor(None, f)",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()",
        "from aiohttp import web\nweb.TCPSite(r)",
    ],
)
def test_the_rule_sees(source: str) -> None:
    assert touches(source)


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.Event()\nasyncio.timeout(1)",
        "import os\nos.environ",
        "runtime.random()",
        "self._runtime.monotonic()",
        "from .timers import time_left",
        "from datetime import timedelta",
        "self.create_connection()",
        "from uuid import UUID",
    ],
)
def test_the_rule_leaves_alone(source: str) -> None:
    assert not touches(source)
