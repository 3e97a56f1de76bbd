"""A standalone Spark cluster on this machine: a master, and workers on hosts of their own (127.0.0.2, 127.0.0.3).

Spark never tries a task a second time on the host of its first attempt while that runs, so speculation needs two hosts.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_faults import spark_home

HOSTS = ("127.0.0.2", "127.0.0.3")
_START_SECONDS = 120


@contextmanager
def standalone(folder: Path, hosts: Sequence[str] = HOSTS) -> Iterator[str]:
    """The cluster; its master's URL. Each worker has one core. `JAVA_HOME` must be set."""
    home = spark_home(folder / "spark-home")
    with ExitStack() as stack:
        master = _Daemon(home, "master.Master", folder, "127.0.0.1", "--port", "0")
        stack.callback(master.end)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        workers = []
        for host in hosts:
            work = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work-{host}"), url)
            worker = _Daemon(home, "worker.Worker", folder, host, *work)
            stack.callback(worker.end)
            workers.append(worker)
        for worker in workers:
            worker.wait_for(r"(Successfully registered with master)")
        yield url


class _Daemon:
    """A process of the cluster, with its log in the folder."""

    def __init__(self, home: Path, name: str, folder: Path, host: str, *arguments: str) -> None:
        self._log = folder / f"{name}-{host}.log"
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        program = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with self._log.open("w") as log:
            where = ["--host", host, "--webui-port", "0", *arguments]
            self._process = subprocess.Popen([*program, *where], env=environment, stdout=log, stderr=log)

    def wait_for(self, pattern: str) -> str:
        """Its log has a line with `pattern`; the group of the match."""
        until = time.monotonic() + _START_SECONDS
        while (found := re.search(pattern, self._log.read_text())) is None:
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < until, self._log.read_text()[-2000:]
            time.sleep(0.1)
        return found.group(1)

    def end(self) -> None:
        """End it, and with a worker its executors."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
