"""A real PostgreSQL for tests: the embedded binaries of Maven's repository, unpacked once, and a server in a folder of its own.

PostgreSQL refuses to run as root. There it runs as `nobody`, from a copy of the binaries when that user cannot reach the cache.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import stock_install
from stock_install import InstallError

VERSION: Final = "16.4.0"
_MACHINES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
_NOBODY: Final = 65534
_START_SECONDS: Final = 60


def missing_tools() -> str | None:
    """A sentence naming what this machine lacks, or None."""
    if _home().is_dir():
        return None
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return f"there is no embedded PostgreSQL for {platform.system()} on {platform.machine()}"
    return None if shutil.which("mvn") else "PostgreSQL needs Maven on this machine"


def install() -> Path:
    """The folder with its `bin`; the first call fetches it, which takes some seconds. InstallError."""
    home = _home()
    if home.is_dir():
        return home
    if reason := missing_tools():
        raise InstallError(reason)
    with stock_install.locked(stock_install.cache_dir()):
        if not home.is_dir():
            with stock_install.built_beside(home) as scratch:
                name = f"embedded-postgres-binaries-linux-{_MACHINES[platform.machine()]}"
                artifact = f"io.zonky.test.postgres:{name}:{VERSION}:jar"
                plugin = f"{stock_install.DEPENDENCY_PLUGIN}:copy"
                stock_install.maven(plugin, f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}", cwd=scratch)
                with zipfile.ZipFile(scratch / f"{name}-{VERSION}.jar") as jar:
                    packed = next(each for each in jar.namelist() if each.endswith(".txz"))
                    jar.extract(packed, scratch)
                with tarfile.open(scratch / packed) as archive:
                    archive.extractall(scratch / "home", filter="data")
                (scratch / "home").rename(home)
    return home


def _home() -> Path:
    return stock_install.cache_dir() / f"postgres-{VERSION}"


class Postgres:
    """A server on a free port of the loopback; `with Postgres() as server: server.dsn`. Without durability: it is a test's."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def dsn(self) -> str:
        """For psycopg and asyncpg."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Of its first process."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Make its folder, and start it."""
        home, user = install(), self._user()
        if user:
            os.chown(self._folder, _NOBODY, _NOBODY)
            home = self._reachable(home, user)
        data = self._folder / "data"
        settings = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run([home / "bin" / "initdb", "-D", data, *settings], user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
        }
        command = [home / "bin" / "postgres", "-D", data, "-p", str(self.port)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, **user)
        self._wait()

    def _wait(self) -> None:
        import psycopg

        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
            except psycopg.OperationalError:
                if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-2000:]}") from None
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed
            self._process.wait(30)
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _user(self) -> dict[str, Any]:
        return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    def _reachable(self, home: Path, user: dict[str, Any]) -> Path:
        try:
            self._run([home / "bin" / "postgres", "--version"], user)
        except (PermissionError, subprocess.CalledProcessError):
            return Path(shutil.copytree(home, self._folder / "home"))
        return home

    def _run(self, command: list[Any], user: dict[str, Any]) -> None:
        subprocess.run(command, check=True, capture_output=True, timeout=_START_SECONDS, cwd=self._folder, **user)


if __name__ == "__main__":
    if reason := missing_tools():
        print(f"tests on PostgreSQL cannot run here: {reason}", flush=True)
    elif not _home().is_dir():
        print(f"fetching PostgreSQL {VERSION} with Maven into {_home()} (once; 15 MB) ...", flush=True)
        try:
            install()
        except InstallError as error:
            print(f"tests on PostgreSQL cannot run here: {error}", flush=True)
