"""Outlets of functions: one producer for each topic and kind, created on first use and fed in the order of the calls.

`TopicHandler` sends the log of a function to its `logTopic`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsar_txn.client import AsyncProducer, Compression, Schema
from pulsar_txn.client.errors import ProducerQueueFull
from pulsar_txn.client.messages import SendTicket
from pulsar_txn.pipeline.functions.sections import ProducerConfig

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient

logger = logging.getLogger("pulsar_txn.pipeline.functions")

Handed: TypeAlias = "asyncio.Future[SendTicket]"
"""Done when the message is with its producer, and in its transaction; the ticket is done when it is stored."""


class Outlet:
    """Producer that is created on first use. Use it on the loop only."""

    def __init__(self, create: Callable[[], Coroutine[Any, Any, AsyncProducer[Any]]]) -> None:
        self._create = create
        self._producer: AsyncProducer[Any] | None = None
        self._waiting: deque[tuple[Handed, Any, dict[str, Any]]] = deque()
        self._feeding: asyncio.Task[None] | None = None

    def send(self, payload: Any, options: dict[str, Any]) -> Handed:
        """Queue one message after those before it; `options` are those of `Producer.send_nowait`."""
        handed: Handed = asyncio.get_running_loop().create_future()
        handed.add_done_callback(_look_at)
        self._waiting.append((handed, payload, options))
        if self._feeding is None and not self._hand_over():
            self._feeding = asyncio.get_running_loop().create_task(self._feed())
        return handed

    def _hand_over(self) -> bool:
        """Hand over as much as the producer takes. True if that was everything."""
        while self._waiting:
            handed, payload, options = self._waiting[0]
            if self._producer is None:
                return False
            try:
                ticket = self._producer.send_nowait(payload, **options)
            except ProducerQueueFull:
                return False
            except Exception as error:  # noqa: BLE001 - it goes to who sends
                handed.set_exception(error)
            else:
                ticket.add_done_callback(_look_at)
                handed.set_result(ticket)
            self._waiting.popleft()
        return True

    async def _feed(self) -> None:
        try:
            while not self._hand_over():
                if self._producer is None:
                    self._producer = await self._create()
                else:
                    await self._producer.wait_for_room()
        except Exception as error:  # noqa: BLE001 - it goes to who sends
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(None)
            raise
        finally:
            self._feeding = None

    def _fail(self, error: Exception | None) -> None:
        while self._waiting:
            handed = self._waiting.popleft()[0]
            if error is None:
                handed.cancel()
            else:
                handed.set_exception(error)

    async def close(self) -> None:
        """Send what waits, then close. If cancelled, what waits is given up."""
        if self._feeding is not None:
            await asyncio.wait([self._feeding])
        if self._producer is not None:
            await self._producer.close()


class Outlets:
    """Outlets of a run."""

    def __init__(self, client: AsyncClient, config: ProducerConfig) -> None:
        self._client = client
        self._config = config
        self._outlets: dict[tuple[str, Compression, str | None, bool, str | None], Outlet] = {}

    def send(
        self,
        topic: str,
        payload: Any,
        options: dict[str, Any],
        *,
        compression: Compression | None = None,
        producer_name: str | None = None,
        schema: Schema[Any] | None = None,
        keeper: str | None = None,
    ) -> Handed:
        """Send bytes, or a value of the schema. A named producer deduplicates: it sends one by one, and never gives up.

        `keeper`: a subscription that is made with the producer, and keeps what is sent.
        """
        chosen = self._config.compression if compression is None else compression
        key = (topic, chosen, producer_name, schema is None, keeper)
        if key not in self._outlets:
            made: dict[str, Any] = {
                "compression": chosen,
                "batching_type": self._config.batching_type,
                "max_pending_messages": self._config.max_pending_messages,
            }
            if schema is not None:
                made["schema"] = schema
            if keeper is not None:
                made |= {"initial_subscription": keeper, "chunking": True}
            if producer_name is not None:
                made |= {"producer_name": producer_name, "send_timeout": 0.0, "batching": False}
            self._outlets[key] = Outlet(lambda: self._client.create_producer(topic, **made))
        return self._outlets[key].send(payload, options)

    async def close(self) -> None:
        """Send what waits and close the producers; what cannot be sent is logged."""
        results = await asyncio.gather(*(each.close() for each in self._outlets.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                logger.warning("a producer did not close, and its last sends may be lost: %s", result)


def _look_at(future: asyncio.Future[Any]) -> None:
    """Look at the error of a send: who sends may have gone on, and an error that nobody asks for is no defect."""
    if not future.cancelled():
        future.exception()


class TopicHandler(logging.Handler):
    """Handler that sends log records as text, outside of transactions, so that the log of an aborted attempt stays readable.

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
