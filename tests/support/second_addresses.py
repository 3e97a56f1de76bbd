"""Other ways to a server than the address that it advertises: a second name of its host, and a tunnel to its port."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

WAYS: Final = ("advertised", "second name", "tunnel")
Reach: TypeAlias = Callable[[str], str]
"""The URL by which a client is to reach the server of another URL."""


class Tunnel:
    """A TCP forwarder on a free port of the loopback, which knows nothing of what it carries, as `ssh -L`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []

    @property
    def port(self) -> int:
        """Its own port."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def reached(way: str) -> Iterator[Reach]:
    """What makes the URL of this way. Tunnels end with the block."""
    with contextlib.ExitStack() as stack:

        def reach(url: str) -> str:
            parts = urlsplit(url)
            host, port = str(parts.hostname), int(parts.port or 0)
            if way == "second name":
                return urlunsplit(parts._replace(netloc=f"localhost:{port}"))
            if way == "tunnel":
                tunnel = stack.enter_context(Tunnel(host, port))
                return urlunsplit(parts._replace(netloc=f"127.0.0.1:{tunnel.port}"))
            return url

        yield reach
