"""Our coordinator beside clusters as a process of its own: what a user gets from `pulsar-txn coordinator`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from stock_pulsar import StartError, free_port

_MAIN: Final = "from pulsar_txn.broker.cli import main; main()"


class OurCoordinator:
    """One `pulsar-txn coordinator` with its data folder. Port and data survive `restart` and `kill`.

    `clusters`: service URLs by name. `program`: what the interpreter `python` runs.
    """

    def __init__(
        self,
        clusters: Mapping[str, str],
        *,
        data_dir: Path | None = None,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-c", _MAIN),
        python: str = sys.executable,
    ) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="our-coordinator-"))
        self.data_dir = data_dir or self._folder / "data"
        self.ready_file = self._folder / "ready.json"
        self.log_file = self._folder / "log"
        self.environment = dict(environment or {})
        self._program = (python, *program)
        self._conf = {
            "clusters": ",".join(clusters),
            **{f"cluster.{name}.serviceUrl": url for name, url in clusters.items()},
            "brokerServicePort": str(self.port),
            "numberOfTransactionCoordinators": "4",
            **(conf or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for `coordinator=`."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The process and its sync helper. Raises RuntimeError while it is not started."""
        if self._process is None:
            raise RuntimeError("this coordinator is not started")
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return [pid, *map(int, children)]

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, *, timeout: float = 30.0) -> Self:
        """Start it and return when it is ready. Raises StartError."""
        file = self._folder / "coordinator.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._conf.items()), encoding="utf-8")
        command = [*self._program, "coordinator", "--conf", str(file), "--data", str(self.data_dir)]
        self.ready_file.unlink(missing_ok=True)  # of a killed one
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self.ready_file)],
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + timeout
        while not self.ready_file.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise StartError(f"our coordinator did not get ready:\n{self.log_tail()}")
            time.sleep(0.02)
        return self

    def facts(self) -> dict[str, Any]:
        """What the ready file says."""
        facts: dict[str, Any] = json.loads(self.ready_file.read_text(encoding="utf-8"))
        return facts

    def stop(self, *, timeout: float = 20.0) -> int | None:
        """SIGTERM, wait until it is gone; its folder is removed. The exit code. Idempotent."""
        code = self._end(signal.SIGTERM, timeout)
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; the folder stays. Idempotent."""
        self._end(signal.SIGKILL, 15.0)

    def pause(self) -> None:
        """SIGSTOP: it holds all its connections, and answers nobody."""
        os.kill(self.pids[0], signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        os.kill(self.pids[0], signal.SIGCONT)

    def ends_itself(self) -> subprocess.Popen[bytes]:
        """The process, which is not ours to end any more."""
        process, self._process = self._process, None
        assert process is not None
        return process

    def wait_for_end(self, timeout: float = 30.0) -> int:
        """Wait until it ends by itself; its exit code."""
        return self.ends_itself().wait(timeout)

    def restart(self, *, hard: bool = False) -> None:
        """End it (`hard`: SIGKILL) and start it again on the same folder and port."""
        self._end(signal.SIGKILL if hard else signal.SIGTERM, 20.0)
        self.start()

    def log_tail(self, characters: int = 4000) -> str:
        """The last part of its log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-characters:] if self.log_file.exists() else ""

    def _end(self, how: signal.Signals, timeout: float) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(how)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(15.0)
