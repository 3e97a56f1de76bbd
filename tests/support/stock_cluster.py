"""A stock Pulsar cluster on this machine: ZooKeeper, three bookies and two brokers, with TLS, tokens and authorization.

    with StockCluster() as cluster:
        AsyncClient(cluster.service_url, authentication=cluster.token("app"), tls_trust_certs_file=cluster.authority)
        cluster.kill("br1")
        cluster.up("br1")

The start takes about 20 s on a quiet machine, and the whole needs 1.6 GB. Ports and data survive `kill` and `up`. The role
`app` may produce and consume in public/default; `coordinator` is a superuser; `other` may nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import cluster_confs
from cluster_confs import HOST
from cluster_process import ClusterProcess
from cluster_secrets import ClusterSecrets
from stock_install import archive_option, install
from stock_pulsar import LOG_CONF, StartError, no_conf, with_keys

VERSION: Final = "4.0.8"
SESSION_MS: Final = 4000
"""Of the brokers at ZooKeeper: so long nobody serves what a killed one served."""
COORDINATORS: Final = 4
BROKERS: Final = ("br1", "br2")
BOOKIES: Final = ("bk1", "bk2", "bk3")
_NAMES: Final = ("zk", *BOOKIES, *BROKERS)
_MEMORY: Final = {
    "zk": "-Xms64m -Xmx128m",
    "bk": "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m",
    "br": "-Xms128m -Xmx512m -XX:MaxDirectMemorySize=512m",
}
_PROGRAMS: Final = {"zk": "zookeeper", "bk": "bookie", "br": "broker"}
_CONFS: Final = {"zk": "PULSAR_ZK_CONF", "bk": "PULSAR_BOOKKEEPER_CONF", "br": "PULSAR_BROKER_CONF"}
_REFUSED: Final = "Couldn't register bookie"
_PATIENCE: Final = 20.0


class StockCluster:
    """Its servers are `zk`, `bk1` to `bk3`, `br1` and `br2`. Not safe to use from several threads.

    `secure=False`: neither TLS nor tokens. `conf`: further keys of broker.conf.
    """

    def __init__(self, *, secure: bool = True, session_ms: int = SESSION_MS, conf: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stock-cluster-"))
        self.secrets = ClusterSecrets(self.folder / "secrets") if secure else None
        self.start_seconds = 0.0
        """How long the last `start` took."""
        self._home = install(VERSION)
        self._ports = _fixed_ports((*_NAMES, *(f"{name}-{kind}" for name in BROKERS for kind in ("http", "tls"))))
        self._session_ms = session_ms
        self._conf = dict(conf or {})
        self._processes = {name: self._process(name) for name in _NAMES}

    # --- where it is

    @property
    def service_url(self) -> str:
        """Of both brokers: `pulsar+ssl://…`, or `pulsar://…` of a cluster that is not secure."""
        return _url("pulsar+ssl", self._ports, "-tls") if self.secrets else self.plain_service_url

    @property
    def plain_service_url(self) -> str:
        """`pulsar://…` of both brokers. A secure cluster wants a token there as well."""
        return _url("pulsar", self._ports, "")

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the first broker."""
        return self._admin_url("br1")

    @property
    def authority(self) -> str:
        """The file of the authority that signed the brokers' certificate."""
        return str(self._secrets.authority)

    def token(self, role: str) -> str:
        """The token of a role."""
        return self._secrets.token(role)

    @property
    def _secrets(self) -> ClusterSecrets:
        assert self.secrets is not None, "this cluster is not secure"
        return self.secrets

    # --- its servers

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Begin with empty folders; returns when both brokers are healthy. Raises StartError."""
        begin = time.monotonic()
        self._write_confs()
        self._start("zk")
        self._initialise()
        self._start(*BOOKIES)
        self._start(*BROKERS)
        if self.secrets:
            self.ask("POST", "/admin/v2/namespaces/public/default/permissions/app", ["produce", "consume"])
        self.start_seconds = time.monotonic() - begin
        return self

    def stop(self) -> None:
        """End everything, and remove the folder. Idempotent."""
        for names in (BROKERS, BOOKIES, ("zk",)):
            for name in names:
                self._processes[name].terminate()
            for name in names:
                self._processes[name].wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, *names: str) -> None:
        """SIGKILL, and wait until they are gone."""
        for name in names:
            self._processes[name].kill()

    def kill_all(self) -> None:
        """SIGKILL of every server, as when the machine loses its power."""
        self.kill(*BROKERS, *BOOKIES, "zk")

    def up(self, *names: str) -> None:
        """Start servers that were killed, and return when they are ready; without names all that do not run. StartError."""
        missing = [name for name in names or _NAMES if not self._processes[name].is_alive]
        for kind in ("zk", "bk", "br"):
            self._start(*(name for name in missing if name.startswith(kind)))

    def spawn(self, name: str) -> None:
        """Begin to start a server that was killed, and do not wait."""
        self._processes[name].start()

    def is_alive(self, name: str) -> bool:
        """Whether the process of a server runs."""
        return self._processes[name].is_alive

    def pid(self, name: str) -> int:
        """The process of a server."""
        return self._processes[name].pid

    def log_tail(self, name: str) -> str:
        """The last part of a server's log."""
        return self._processes[name].log_tail()

    # --- who serves what

    def bundle(self, topic: str) -> str:
        """The bundle that a topic of full name belongs to, as `0x00000000_0x10000000`."""
        return str(self.ask("GET", f"/lookup/v2/topic/{_path(topic)}/bundle"))

    def owner(self, topic: str) -> str:
        """The broker that serves a topic; it is given to one if nobody serves it."""
        found = self.ask("GET", f"/lookup/v2/topic/{_path(topic)}")["brokerUrl"]
        return next(name for name in BROKERS if found.endswith(f":{self._ports[name]}"))

    def unload(self, bundle: str, to: str | None = None) -> None:
        """Unload a bundle of public/default; `to`: it goes to this broker."""
        where = f"?destinationBroker={HOST}:{self._ports[f'{to}-http']}" if to else ""
        self.ask("PUT", f"/admin/v2/namespaces/public/default/{bundle}/unload{where}")

    def move(self, topic: str, to: str) -> None:
        """Have a topic's bundle served by the broker `to`."""
        self.owner(topic)
        self.unload(self.bundle(topic), to)

    def create(self, topic: str, partitions: int = 0) -> None:
        """Make a topic of full name."""
        kind, body = ("/partitions", partitions) if partitions else ("", None)
        self.ask("PUT", f"/admin/v2/{_path(topic)}{kind}", body)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """What the admin interface of a broker that lives says, as superuser. Raises urllib.error.HTTPError."""
        name = next(name for name in BROKERS if self._processes[name].is_alive)
        url = self._admin_url(name) + path
        for _ in range(5):
            answer = self._request(method, url, body)
            if isinstance(answer, bytes):
                return _decoded(answer)
            url = answer
        raise RuntimeError(f"{method} {path} was redirected too often")

    def _request(self, method: str, url: str, body: object) -> bytes | str:
        """The answer, or where to ask."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if self.secrets:
            headers["Authorization"] = f"Bearer {self.token('admin')}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=_PATIENCE) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code in (302, 307):
                return str(error.headers["Location"])
            raise

    def _admin_url(self, broker: str) -> str:
        return f"http://{HOST}:{self._ports[f'{broker}-http']}"

    # --- how it starts

    def _start(self, *names: str) -> None:
        for name in names:
            self._processes[name].start()
        for name in names:
            # A bookie that was killed is refused until its old session at ZooKeeper has ended. It ends itself then, or hangs.
            self._processes[name].wait_until(self._readiness(name), gave_up=_REFUSED if name in BOOKIES else None)

    def _process(self, name: str) -> ClusterProcess:
        kind = name[:2]
        environment = self._environment(_MEMORY[kind]) | {_CONFS[kind]: str(self.folder / f"{name}.conf")}
        command = [str(self._home / "bin" / "pulsar"), _PROGRAMS[kind]]
        return ClusterProcess(name, command, environment, self.folder / f"{name}.log", self._home)

    def _environment(self, memory: str) -> dict[str, str]:
        log_conf = f"-Dlog4j.configurationFile={self.folder / 'log4j2.xml'}"
        java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+PerfDisableSharedMem {archive_option(VERSION)} {log_conf}"
        return os.environ | {
            "PULSAR_LOG_DIR": str(self.folder / "logs"),
            "PULSAR_LOG_CONF": no_conf(),
            "PULSAR_MEM": memory,
            "BOOKIE_MEM": memory,
            "PULSAR_GC": java,
            "BOOKIE_GC": java,
            "PULSAR_GC_LOG": "-Xlog:disable",
            "BOOKIE_GC_LOG": "-Xlog:disable",
            "PULSAR_EXTRA_OPTS": "-Dio.netty.leakDetection.level=disabled",
        }

    def _write_confs(self) -> None:
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "log4j2.xml").write_text(LOG_CONF, encoding="utf-8")
        zookeeper = self._ports["zk"]
        (self.folder / "zk.conf").write_text(cluster_confs.zookeeper(self.folder / "zk", zookeeper), encoding="utf-8")
        for name in BOOKIES:
            keys = cluster_confs.bookie(self.folder / name, self._ports[name], zookeeper, self._session_ms)
            loopback = next((each for _, each in socket.if_nameindex() if each in ("lo", "lo0")), None)
            self._write_conf(name, "bookkeeper.conf", keys | ({"listeningInterface": loopback} if loopback else {}))
        for name in BROKERS:
            keys = cluster_confs.broker(self._ports[name], self._ports[f"{name}-http"], zookeeper, self._session_ms)
            if self.secrets:
                keys |= cluster_confs.secured(self.secrets, self._ports[f"{name}-tls"])
            self._write_conf(name, "broker.conf", keys | self._conf)

    def _write_conf(self, name: str, shipped: str, keys: Mapping[str, str]) -> None:
        text = (self._home / "conf" / shipped).read_text(encoding="utf-8")
        (self.folder / f"{name}.conf").write_text(with_keys(text, keys), encoding="utf-8")

    def _initialise(self) -> None:
        """The metadata of the cluster, once."""
        store = f"zk:{HOST}:{self._ports['zk']}"
        where = {
            "--cluster": cluster_confs.NAME,
            "--metadata-store": store,
            "--configuration-metadata-store": store,
            "--web-service-url": self.admin_url,
            "--broker-service-url": f"pulsar://{HOST}:{self._ports['br1']}",
            "--initial-num-transaction-coordinators": str(COORDINATORS),
        }
        if self.secrets:
            where["--broker-service-url-tls"] = f"pulsar+ssl://{HOST}:{self._ports['br1-tls']}"
        options = [each for pair in where.items() for each in pair]
        command = [str(self._home / "bin" / "pulsar"), "initialize-cluster-metadata", *options]
        environment = self._environment("-Xmx128m")
        ClusterProcess("initialise", command, environment, self.folder / "initialise.log", self._home).run()

    def _readiness(self, name: str) -> Callable[[], bool]:
        if name == "zk":
            return lambda: _says_imok(self._ports["zk"])
        if name in BOOKIES:
            process = self._processes[name]
            return lambda: process.has_said("Started component bookie-server") and not process.has_said(_REFUSED)
        return lambda: _listens(self._ports[name]) and self._is_healthy(name)

    def _is_healthy(self, name: str) -> bool:
        try:
            return self._request("GET", f"{self._admin_url(name)}/admin/v2/brokers/health", None) == b"ok"
        except OSError:  # HTTPError as well
            return False


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Redirects are followed by `ask`: urllib does not do it for PUT, and drops the token."""


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


def _url(scheme: str, ports: Mapping[str, int], kind: str) -> str:
    return f"{scheme}://" + ",".join(f"{HOST}:{ports[name + kind]}" for name in BROKERS)


def _path(topic: str) -> str:
    return urllib.parse.quote(topic.replace("://", "/"))


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content.decode()


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def _says_imok(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=2.0) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False


def _fixed_ports(names: tuple[str, ...]) -> dict[str, int]:
    """A free port for each, below those that the system gives to clients: a server that was killed finds its port free."""
    try:
        top = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except OSError:
        top = 32768
    found: list[int] = []
    drawn = random.SystemRandom()
    for _ in range(1000):
        port = drawn.randrange(max(top - 12_000, 10_000), top)
        if port not in found and not _is_taken(port):
            found.append(port)
        if len(found) == len(names):
            return dict(zip(names, found, strict=True))
    raise StartError(f"no {len(names)} free ports below {top}")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
