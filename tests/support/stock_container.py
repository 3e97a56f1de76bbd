"""A stock Apache Pulsar in a container, for machines that have a Docker engine but no Java and Maven (extra `containers`).

Lookup answers name the broker's own port, so each port is the same inside and outside.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Any, Final, Self

from stock_pulsar import StartError, free_port, is_ready

IMAGE: Final = "apachepulsar/pulsar"
_COMMAND: Final = "bin/apply-config-from-env.py conf/standalone.conf && exec bin/pulsar standalone -nfw -nss"


def docker_answers() -> bool:
    """True when there is a Docker engine to talk to and `testcontainers` is installed."""
    if shutil.which("docker") is None:
        return False
    try:
        import testcontainers.core.container  # noqa: F401  # an extra of its own
    except ImportError:
        return False
    try:
        asked = subprocess.run(["docker", "version", "-f", "{{.Server.Version}}"], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def settings(port: int, http_port: int) -> dict[str, str]:
    """The environment of the container: keys of standalone.conf, some of them absent from the file."""
    return {
        "PULSAR_MEM": "-Xms256m -Xmx1g -XX:MaxDirectMemorySize=1g",
        "PULSAR_PREFIX_transactionCoordinatorEnabled": "true",
        "PULSAR_PREFIX_acknowledgmentAtBatchIndexLevelEnabled": "true",
        "brokerServicePort": str(port),
        "webServicePort": str(http_port),
        "advertisedAddress": "127.0.0.1",
    }


class ContainerPulsar:
    """One standalone server of `version` in a container that is removed by `stop`."""

    def __init__(self, version: str) -> None:
        """Nothing is started yet; the ports are chosen."""
        self.version = version
        self.port = free_port()
        self.http_port = free_port()
        self._container: Any = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` of the binary protocol."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the admin REST interface."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def container_id(self) -> str:
        """The engine's id of the running container."""
        return str(self._container.get_wrapped_container().id)

    def start(self, *, timeout: float = 180.0) -> Self:
        """Pull the image if need be, start it and return when it is ready. Raises StartError."""
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        # Its reaper ends a container with the process that began it; a server of `targets` serves other workers as well.
        testcontainers_config.ryuk_disabled = True
        container = DockerContainer(f"{IMAGE}:{self.version}").with_command(["bash", "-c", _COMMAND])
        container.ports = {f"{port}/tcp": ("127.0.0.1", port) for port in (self.port, self.http_port)}
        for key, value in settings(self.port, self.http_port).items():
            container = container.with_env(key, value)
        self._container = container.start()
        until = time.monotonic() + timeout
        while not is_ready(self.service_url, self.admin_url):
            if time.monotonic() > until:
                self.stop()
                raise StartError(f"the container of Pulsar {self.version} was not ready after {timeout:.0f} s")
            time.sleep(0.5)
        return self

    def stop(self) -> None:
        """Remove the container. Idempotent."""
        container, self._container = self._container, None
        if container is not None:
            container.stop()
