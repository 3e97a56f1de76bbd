"""What this client logs, handed to the logger that a program gave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.compat._arguments import dead
from pulsar_txn.compat.policies import ConsoleLogger, FileLogger

_OURS: Final = "pulsar_txn.client"


class _Forwarding(logging.Handler):
    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self._target.isEnabledFor(record.levelno):
            self._target.handle(record)


def forward(logger: Any) -> Callable[[], None]:
    """Hand on what is logged, to one of Python's loggers; returns what ends it. ValueError for anything that is no logger."""
    if logger is None:
        return lambda: None
    if isinstance(logger, (ConsoleLogger, FileLogger)):
        dead("logger", logger, None, "this client logs through Python's logging, as `pulsar_txn.client`")
        return lambda: None
    if not isinstance(logger, logging.Logger):
        raise ValueError("logger must be None, a logging.Logger, ConsoleLogger or FileLogger")  # noqa: TRY004 - the official client's class
    handler = _Forwarding(logger)
    logging.getLogger(_OURS).addHandler(handler)
    return lambda: logging.getLogger(_OURS).removeHandler(handler)
