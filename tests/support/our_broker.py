"""Our broker as a process of its own, on loopback and free ports: what a user gets from `pulsar-txn standalone`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from stock_pulsar import StartError, free_port

_MAIN: Final = "from pulsar_txn.broker.cli import main; main()"


class OurBroker:
    """One `pulsar-txn standalone` with its data folder. Ports and data survive `restart` and `kill`."""

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        conf: Mapping[str, str] | None = None,
        python: str = sys.executable,
        program: str = _MAIN,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is started yet. `conf`: further configuration keys, handed over in the environment.

        `python`: the interpreter of the environment that pulsar-txn is installed in. `program`: what it runs.
        `environment`: further variables of that process, as PYTHONPATH for an earlier build.
        """
        self._environment = dict(environment or {})
        self._python = python
        self._program = program
        self.port = free_port()
        self.http_port = free_port()
        self._temporary = data_dir is None
        self.data_dir = data_dir or Path(tempfile.mkdtemp(prefix="our-broker-"))
        self._conf = {"brokerServicePort": str(self.port), "webServicePort": str(self.http_port)} | dict(conf or {})
        self._is_known = not (conf or {}).keys().isdisjoint(("brokerServicePort", "webServicePort"))  # others know the ports
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` of the binary protocol."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the HTTP interface."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """The pid of the broker. Raises RuntimeError while it is not started."""
        if self._process is None:
            raise RuntimeError("this broker is not started")
        return self._process.pid

    @property
    def log_file(self) -> Path:
        """What the broker wrote, of all its starts."""
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def take_ports_of(self, other: OurBroker) -> None:
        """Listen, from the next start, where `other` listened: its clients come here then."""
        self.port, self.http_port = other.port, other.http_port
        self._conf |= {"brokerServicePort": str(self.port), "webServicePort": str(self.http_port)}
        self._is_known = True

    def start(self, *, timeout: float = 30.0) -> Self:
        """Start it and return when its health check answers. Raises StartError.

        A port that was free a moment ago may be taken by now: the first start looks for others then.
        """
        command = [self._python, "-c", self._program, "standalone", "--data", str(self.data_dir)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | self._environment | self._conf, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + timeout
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                if not self._is_known and "is in use; stop what listens there" in self.log_tail():
                    self.port, self.http_port = free_port(), free_port()
                    self._conf |= {"brokerServicePort": str(self.port), "webServicePort": str(self.http_port)}
                    self._is_known = True
                    return self.start(timeout=timeout)
                raise StartError(f"our broker did not get ready:\n{self.log_tail()}")
            time.sleep(0.05)
        self._is_known = True
        return self

    def stop(self, *, timeout: float = 15.0) -> None:
        """SIGTERM, wait until it is gone, SIGKILL if it is not; a temporary folder is removed. Idempotent."""
        self._end(signal.SIGTERM, timeout)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
            self.log_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; the folder stays. Idempotent."""
        self._end(signal.SIGKILL, 15.0)

    def restart(self, *, hard: bool = False) -> None:
        """End the broker (`hard`: SIGKILL) and start it again on the same folder and ports."""
        self._end(signal.SIGKILL if hard else signal.SIGTERM, 15.0)
        self.start()

    def log_tail(self, characters: int = 3000) -> str:
        """The last part of the broker's log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-characters:] if self.log_file.exists() else ""

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.admin_url + "/admin/v2/brokers/health", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self, how: signal.Signals, timeout: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15.0)
