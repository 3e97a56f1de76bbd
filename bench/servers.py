"""The two servers that are measured, each as a process of its own: what they cost and how they are started."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Protocol, Self

from our_broker import OurBroker
from stock_pulsar import LONG_RUN, StockPulsar

STOCK_VERSION = "4.2.4"


class Process(Protocol):
    """What both servers of tests/support have."""

    service_url: str
    admin_url: str
    pid: int

    def start(self) -> Self:
        """Return when it is ready."""

    def stop(self) -> None:
        """End it and remove its data."""


class Server:
    """A running server with its name in the table."""

    def __init__(self, name: str, process: OurBroker | StockPulsar) -> None:
        self.name = name
        self.process = process

    @property
    def url(self) -> str:
        """`pulsar://…`."""
        return self.process.service_url

    @property
    def metrics(self) -> str | None:
        """Where its counted syncs are, None when it does not tell them."""
        return self.process.admin_url + "/metrics" if isinstance(self.process, OurBroker) else None

    @property
    def pids(self) -> list[int]:
        """The process and those that it started (our sync helper)."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()
        return [self.process.pid, *map(int, children)]

    def memory_mib(self) -> tuple[float, float]:
        """(RSS, RssAnon) of all its processes."""
        rss = anon = 0
        for pid in self.pids:
            for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmRSS:"):
                    rss += int(line.split()[1])
                elif line.startswith("RssAnon:"):
                    anon += int(line.split()[1])
        return rss / 1024, anon / 1024


def ours() -> Server:
    """`pulsar-txn standalone` with the journal, which always syncs."""
    return Server("pulsar-txn", OurBroker(conf={"ledgerProvider": "journal"}))


def stock() -> Server:
    """Stock Apache Pulsar whose bookie syncs its journal."""
    return Server(f"Pulsar {STOCK_VERSION}", StockPulsar(STOCK_VERSION, journal_sync_data=True, gc=LONG_RUN))


def seconds_to_ready(server: Server) -> tuple[float, float]:
    """(seconds until the binary port takes connections, until it is ready); the server is running then.

    Ready is what its fixture waits for: ours the health check, stock Pulsar what running-pulsar names.
    """
    process = server.process
    port_open: list[float] = []
    began = time.perf_counter()

    def watch() -> None:
        while not port_open and time.perf_counter() - began < 120:
            try:
                with socket.create_connection(("127.0.0.1", process.port), timeout=1):
                    port_open.append(time.perf_counter() - began)
            except OSError:
                time.sleep(0.01)

    import threading

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        process.start()
    finally:
        ready = time.perf_counter() - began
        watcher.join()
    return port_open[0] if port_open else ready, ready


def wait_healthy(server: Server) -> None:
    """Ask once, so that the first measurement does not pay for it."""
    try:
        with urllib.request.urlopen(server.process.admin_url + "/admin/v2/brokers/health", timeout=10):
            return
    except (urllib.error.URLError, OSError) as error:
        raise RuntimeError(f"{server.name} is not healthy: {error}") from error
