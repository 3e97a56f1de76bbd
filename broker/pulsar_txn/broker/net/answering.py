"""Connection, as far as commands need it, so that one which cuts and sends its bytes in another way can carry them out too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pulsar_txn.wire.errors import ServerError

from .connection import Refused


class Answering(Protocol):
    """A client's connection, as the commands see it; see `connection.Connection`."""

    @property
    def peer(self) -> str:
        """Address of the peer, for logs."""

    @property
    def connected(self) -> bool:
        """True if it has said CONNECT."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate that the client showed, and TLS has checked; None for none."""

    @property
    def writable(self) -> bool:
        """True if the client takes what it is sent."""

    def know(self, client_version: str) -> None:
        """The client has said CONNECT."""

    def write(self, data: bytes) -> None:
        """Send at the end of this turn."""

    def write_command(self, name: str, **fields: Any) -> None:
        """Send a command at the end of this turn."""

    def answer(self, data: bytes) -> None:
        """Answer a request that is counted."""

    def respond(self, done: bytes, refused: Refused, about: bytes, value: Any, error: ServerError | None, message: str) -> None:
        """As `answer`, with an answer that is known beforehand."""

    def close(self) -> None:
        """Write what is collected and close."""
