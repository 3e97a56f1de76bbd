"""Exit codes of the process, and the sentence that goes with each. The table is in docs/configuration.md."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pulsar_txn.wire.secret_text import shown

if TYPE_CHECKING:
    from pulsar_txn.broker.net.ports import CannotListen

OK: Final = 0
REFUSED: Final = 1
"""The broker was asked and said no (a transaction that is not there, …)."""
USAGE: Final = 2
"""An option, a key of the configuration, or a plug-in's name is wrong."""
UNAVAILABLE: Final = 69
"""A port is in use or not ours; a broker does not answer; a part of the installation is missing."""
STORE_REFUSED: Final = 73
"""The data folder cannot be used: in use, newer format, not writable, a network file system."""
STORAGE_FAILED: Final = 74
"""A write or sync failed, or stored bytes are damaged. Everything that was answered is durable."""
CUT_SHORT: Final = 75
"""Ended by a second signal, or by the limit of the drain. Everything that was answered is durable."""


class Ending(Exception):  # noqa: N818 - not always an error
    """The process ends with `code`, after `sentence` was printed. It shows no credentials."""

    def __init__(self, code: int, sentence: str) -> None:
        sentence = shown(sentence)
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


_OPTIONS: Final = {"brokerServicePort": "--port", "webServicePort": "--http-port"}
"""Of `pulsar-txn standalone`."""


def cannot_listen(host: str, error: CannotListen, options: Mapping[str, str] = _OPTIONS) -> Ending:
    """A sentence for a port that cannot be had. `options`: those of the command that set a key, where it has them."""
    port, option = error.port, options.get(error.key, f"--set {error.key}=PORT")
    remedy = f"choose another with {option} (or {error.key} in the configuration)"
    match error.errno:
        case errno.EADDRINUSE:
            return Ending(UNAVAILABLE, f"port {port} on {host} is in use; stop what listens there, or {remedy}")
        case errno.EACCES:
            return Ending(UNAVAILABLE, f"port {port} on {host} is not for this user; {remedy}")
        case _:
            reason = error.strerror or str(error)
            return Ending(UNAVAILABLE, f"cannot listen on {host}, port {port} ({reason}); check bindAddress, or {remedy}")
