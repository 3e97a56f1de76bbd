"""A stock Apache Pulsar (standalone, RocksDB metadata, transactions on) as a process of this test run, on loopback.

    with StockPulsar("4.2.4") as pulsar:
        Client(pulsar.service_url)

Start takes 6 s on a quiet machine and up to 80 s on a busy one. Ports and data survive `restart` and `kill`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from stock_install import archive_option, cache_dir, install

DEFAULT_MEMORY: Final = "-Xms256m -Xmx1g -XX:MaxDirectMemorySize=1g"
QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For servers of minutes: half the CPU of a start, because nothing is compiled for a long life."""
LONG_RUN: Final = "-XX:+UseG1GC"
"""For measurements."""

LOG_CONF: Final = """\
<Configuration status="WARN">
  <Appenders><Console name="C"><PatternLayout pattern="%d{ISO8601} [%t] %-5p %c{2} - %m%n"/></Console></Appenders>
  <Loggers>
    <Logger name="org.eclipse.jetty.server.RequestLog" level="warn"/>
    <Root level="info"><AppenderRef ref="C"/></Root>
  </Loggers>
</Configuration>
"""
_ASSIGN: Final = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions?checkAllowAutoCreation=false"


class StartError(Exception):
    """The server ended or did not get ready in time; the message holds the end of its log."""


class StockPulsar:
    """One standalone server of `version`, its folder and its ports. Not safe to use from several threads."""

    def __init__(
        self,
        version: str,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        http_port: int | None = None,
        journal_sync_data: bool = False,
        conf: Mapping[str, str] | None = None,
        memory: str = DEFAULT_MEMORY,
        gc: str = QUICK_START,
        token: str | None = None,
        archive: str | None = None,
    ) -> None:
        """Nothing is started or written yet.

        `data_dir`: kept when given, else a temporary folder that `stop` removes. `conf`: further keys of
        standalone.conf. `port` and `http_port`: free ones are taken when not given. `token`: of an operator, for a server
        that asks who comes. `archive`: Java's option for the archive of classes, see `class_archives`.
        """
        self.version = version
        self.port = port or free_port()
        self.http_port = http_port or free_port()
        self._bookie_port = free_port()
        self._temporary = data_dir is None
        self.data_dir = data_dir.resolve() if data_dir else Path(tempfile.mkdtemp(prefix=f"stock-pulsar-{version}-"))
        self._conf = _settings(self, journal_sync_data) | dict(conf or {})
        self._memory = memory
        self._gc = gc
        self._token = token
        self._archive = archive_option(version) if archive is None else archive
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` of the binary protocol."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the admin REST interface."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def bookie_port(self) -> int:
        """The port of the bookie inside (listens on loopback as well)."""
        return self._bookie_port

    @property
    def pid(self) -> int:
        """The pid of the server (the start script execs java). Raises RuntimeError while it is not started."""
        if self._process is None:
            raise RuntimeError("this server is not started")
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """What the server wrote, of all its starts."""
        return self.data_dir / "out.log"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, *, timeout: float = 180.0) -> Self:
        """Fetch the server if need be, start it, and return when it is ready. Raises StartError, InstallError."""
        home = install(self.version)
        self._write_conf(home)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(home), cwd=home, env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_ready(timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, *, timeout: float = 30.0) -> None:
        """SIGTERM, wait until it is gone, SIGKILL if it is not; a temporary folder is removed. Idempotent."""
        self._end(signal.SIGTERM, timeout)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; the folder stays. Idempotent."""
        self._end(signal.SIGKILL, 30.0)

    def restart(self, *, hard: bool = False, timeout: float = 180.0) -> None:
        """End the server (`hard`: SIGKILL) and start it again on the same folder and ports."""
        self._end(signal.SIGKILL if hard else signal.SIGTERM, 30.0)
        self.start(timeout=timeout)

    def log_tail(self, characters: int = 3000) -> str:
        """The last part of the server's log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")[-characters:] if self.log_file.exists() else ""

    def _end(self, how: signal.Signals, timeout: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30.0)

    def _write_conf(self, home: Path) -> None:
        (self.data_dir / "logs").mkdir(parents=True, exist_ok=True)
        (self.data_dir / "log4j2.xml").write_text(LOG_CONF, encoding="utf-8")
        stock = (home / "conf" / "standalone.conf").read_text(encoding="utf-8")
        (self.data_dir / "standalone.conf").write_text(with_keys(stock, self._conf), encoding="utf-8")

    def _command(self, home: Path) -> list[str]:
        folder = self.data_dir
        command = [str(home / "bin" / "pulsar"), "standalone", "-nfw", "-nss", "--metadata-dir", str(folder / "metadata")]
        return [*command, "--bookkeeper-dir", str(folder / "bookkeeper"), "--bookkeeper-port", str(self._bookie_port)]

    def _environment(self) -> dict[str, str]:
        folder = self.data_dir
        return os.environ | {
            "PULSAR_STANDALONE_CONF": str(folder / "standalone.conf"),
            "PULSAR_LOG_DIR": str(folder / "logs"),
            "PULSAR_LOG_CONF": no_conf(),
            "PULSAR_MEM": self._memory,
            "PULSAR_GC": f"{self._gc} {self._archive} -Dlog4j.configurationFile={folder / 'log4j2.xml'}",
            "PULSAR_GC_LOG": f"-Xlog:gc:file={folder / 'logs' / 'gc.log'}",
        }

    def _wait_until_ready(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        coordinators = self._conf["transactionCoordinatorEnabled"] == "true"
        while not is_ready(self.service_url, self.admin_url, coordinators=coordinators, token=self._token):
            if self._process is None or self._process.poll() is not None:
                raise StartError(f"Pulsar {self.version} ended while starting:\n{self.log_tail()}")
            if time.monotonic() > until:
                raise StartError(f"Pulsar {self.version} was not ready after {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.2)


def no_conf() -> str:
    """A PULSAR_LOG_CONF in a folder with no files.

    Pulsar puts that folder first on the path of classes. Java shares no classes over a path that begins with files.
    """
    folder = cache_dir().resolve() / "no-conf"
    folder.mkdir(exist_ok=True)
    return str(folder / "none")


def _settings(server: StockPulsar, journal_sync_data: bool) -> dict[str, str]:
    settings = {
        "transactionCoordinatorEnabled": "true",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
        "activeConsumerFailoverDelayTimeMillis": "100",  # a second at every change of the active consumer is long in tests
        "brokerServicePort": str(server.port),
        "webServicePort": str(server.http_port),
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "allowEphemeralPorts": "true",  # only then is --bookkeeper-port honoured
        "allowLoopback": "true",
        "journalSyncData": str(journal_sync_data).lower(),
        "dbStorage_writeCacheMaxSizeMb": "64",
        "dbStorage_readAheadCacheMaxSizeMb": "32",
        "dbStorage_rocksDB_blockCacheSize": "16777216",
        "managedLedgerCacheSizeMB": "128",
    }
    if loopback := _loopback_interface():
        settings["listeningInterface"] = loopback  # read by the bookie, which else listens on every interface
    return settings


def _loopback_interface() -> str | None:
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)


def with_keys(text: str, keys: Mapping[str, str]) -> str:
    """`text` of a Pulsar conf file with `keys` set, each once: in place where the key is, else as a new line.

    A repeated key becomes a list when BookKeeper reads the file; its last line has no newline of its own.
    """
    left = dict(keys)
    lines = []
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9_.]+)\s*=", line)
        key = match[1] if match else None
        if key not in keys:
            lines.append(line)
        elif key in left:
            lines.append(f"{key}={left.pop(key)}")
    lines += [f"{key}={value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def is_ready(service_url: str, admin_url: str, *, coordinators: bool = True, token: str | None = None) -> bool:
    """True when a client can be served: port, health, default namespace and, unless it has none, the coordinator's topic."""
    host, _, port = service_url.removeprefix("pulsar://").split(",")[0].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2.0):
            pass
    except OSError:
        return False
    if any(
        _get(admin_url + path, token) is None for path in ("/admin/v2/brokers/health", "/admin/v2/namespaces/public/default")
    ):
        return False
    if not coordinators:
        return True
    answer = _get(admin_url + _ASSIGN, token)
    return answer is not None and json.loads(answer).get("partitions", 0) > 0


def _get(url: str, token: str | None = None) -> bytes | None:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(request, timeout=10.0) as answer:
        body: bytes = answer.read()
        return body
    return None


def free_port() -> int:
    """A port on 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
