"""`logTopic`: what a function logs, sent to a topic."""

from __future__ import annotations

import asyncio
import logging

from pulsar_txn.pipeline.functions._outlets import Outlets


class TopicHandler(logging.Handler):
    """Sends records as text, never in a transaction: the log of an attempt that was aborted is worth reading as well.

    Properties say who logs: `loglevel`, `fqn`, `instance`. From any thread; what cannot be sent is left out.
    """

    def __init__(self, outlets: Outlets, topic: str, fqfn: str, number: int) -> None:
        super().__init__()
        self._outlets = outlets
        self._topic = topic
        self._properties = {"fqn": fqfn, "instance": str(number)}
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it to the loop."""
        try:
            payload = self.format(record).encode()
            options = {"properties": self._properties | {"loglevel": record.levelname}}
            self._loop.call_soon_threadsafe(self._outlets.send, self._topic, payload, options)
        except Exception:  # noqa: BLE001 - as every handler: logging must not break what logs
            self.handleError(record)
