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
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        """Its own port."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        """No descriptor is closed before the threads that use it have ended: its number may be given to somebody else."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _start(self, function: Callable[..., None], *arguments: socket.socket) -> None:
        self._threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it ends
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._start(_pump, near, far)
                self._start(_pump, far, near)


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
