"""One server of a cluster as a process: started, waited for, killed, started again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stock_pulsar import StartError

_START_SECONDS: Final = 180.0
_END_SECONDS: Final = 30.0


class ClusterProcess:
    """`command` is a script that becomes the server, so that the process is the server's. Its log keeps all starts."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._log = log
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = 0

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, f"{self._name} was not started"
        return self._process.pid

    def start(self) -> None:
        """Begin; does nothing when it runs."""
        if self.is_alive:
            return
        with self._log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self) -> None:
        """From its begin to its end. StartError when it fails."""
        self.start()
        assert self._process is not None
        if self._process.wait(_START_SECONDS) != 0:
            raise StartError(f"{self._name} failed:\n{self.log_tail()}")

    def has_said(self, text: str) -> bool:
        """Whether this is in its log since it was started last."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            return text.encode() in log.read()

    def wait_until(self, ready: Callable[[], bool], *, gave_up: str | None = None) -> None:
        """Until it is ready; one that ends, or says `gave_up`, is started once more. Raises StartError: then it has ended."""
        until = time.monotonic() + _START_SECONDS
        while not ready():
            if gave_up is not None:
                if self.has_said(gave_up):  # its process may stay, and serves nobody
                    self.kill()
                self.start()
            if not self.is_alive or time.monotonic() > until:
                self.kill()
                raise StartError(f"{self._name} did not get ready:\n{self.log_tail()}")
            time.sleep(0.1)

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self) -> None:
        """Until it is gone; one that does not go is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_SECONDS)

    def log_tail(self, characters: int = 3000) -> str:
        """The last part of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-characters:] if self._log.exists() else ""
