"""The two ports of one protocol: without TLS and with it, either or both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.runtime import Listener, Runtime

from .handshakes import Handshakes
from .tls import TlsKeys, reloaded_tls_of


class PortKeys(TlsKeys, Protocol):
    """The keys of a configuration that this module reads."""

    @property
    def incomplete_frame_timeout_seconds(self) -> int:
        """Seconds that a handshake may take."""


class CannotListen(OSError):  # noqa: N818 - the word of the field
    """A port that cannot be had, with the system's reason. `key`: the one of the configuration that names it."""

    def __init__(self, key: str, port: int, error: OSError | OverflowError) -> None:
        known = error if isinstance(error, OSError) else OSError(str(error))
        super().__init__(known.errno, known.strerror or str(known))
        self.key = key
        self.port = port


class Ports:
    """Not open yet; `open`, at the end `close`. `plain` and `tls`: the ports that are open, as the system gave them.

    `key`: what the configuration calls the one without TLS.
    """

    def __init__(self, key: str, config: PortKeys, runtime: Runtime, limits: Limits) -> None:
        self.plain: int | None = None
        self.tls: int | None = None
        self._key = key
        self._config = config
        self._runtime = runtime
        self._limits = limits
        self._listeners: list[Listener] = []
        self._handshakes: Handshakes | None = None

    async def open(self, host: str, plain: int | None, tls: int | None, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Listen on those that are not None. Raises CannotListen, ConfigError; none is open then."""
        try:
            if tls is not None:
                seconds = self._config.incomplete_frame_timeout_seconds
                contexts, now = reloaded_tls_of(self._config), self._runtime.monotonic
                self._handshakes = Handshakes(lambda: contexts.get(now()), protocol, self._limits, seconds)
                self.tls = await self._listen(f"{self._key}Tls", host, tls, self._handshakes)
            if plain is not None:
                self.plain = await self._listen(self._key, host, plain, protocol)
        except BaseException:
            await self.close()
            raise

    def urls(self, host: str, scheme: str = "pulsar", scheme_tls: str = "pulsar+ssl") -> tuple[str, str]:
        """The URLs of both, without and with TLS; empty for one that is not open."""
        plain = "" if self.plain is None else f"{scheme}://{host}:{self.plain}"
        return plain, "" if self.tls is None else f"{scheme_tls}://{host}:{self.tls}"

    async def close(self) -> None:
        """Accept nothing more. Connections that are through stay. Idempotent."""
        self.plain = self.tls = None
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        if self._handshakes is not None:
            self._handshakes.close()

    async def _listen(self, key: str, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> int:
        try:
            listener = await self._runtime.listen(host, port, protocol)
        except (OSError, OverflowError) as error:
            raise CannotListen(key, port, error) from error
        self._listeners.append(listener)
        return listener.port
