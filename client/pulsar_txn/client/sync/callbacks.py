"""Threads in which the blocking client runs the program's own code: never on the thread that speaks with the broker.

Two threads per client, started with the first call. One is told things, in order: observers, interceptors, callbacks of
futures. The other one is asked: credentials, keys, values of a table view; nobody who is told and takes his time holds
those up. What belongs to a call of the program's (routing, schemas, `before_send`, handlers) runs in the thread that calls.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pulsar_txn.client._validation import A_CONSUMER_INTERCEPTOR, A_SOURCE_OF_KEYS, A_WAY_TO_AUTHENTICATE, validate_methods
from pulsar_txn.client.net.authentication import Authentication, BasicAuthentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.net.runtime import Future, WorkerThread
from pulsar_txn.client.net.thread_futures import answer
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.schema.crypto import CryptoKeys, KeyComing, PemKeys
from pulsar_txn.wire.secret_text import Secret

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import Acknowledged, AsyncConsumer
    from pulsar_txn.client.receive.message import Message
    from pulsar_txn.client.txn.transaction import AsyncTransaction

logger = logging.getLogger("pulsar_txn.client.sync")

T = TypeVar("T")

MAX_WAITING: Final = 10_000
"""Calls that wait for a slow program; beyond it observers and interceptors are not told, and nothing is sent `_nowait`."""

DRAIN_SECONDS: Final = 2.0
"""Time that closing waits for earlier callbacks."""


class Callbacks:
    """The two threads of one client."""

    def __init__(self) -> None:
        self._told = WorkerThread("pulsar-txn-callbacks")
        self._asked = WorkerThread("pulsar-txn-questions")
        self._left_out = 0
        self._left: list[Callable[[], object]] = []

    @property
    def behind(self) -> bool:
        """True if too many calls wait."""
        return self._told.waiting >= MAX_WAITING

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        """Have it called, after what was told before; left out, with a warning in the log, while too many wait."""
        if self.behind:
            self._left_out += 1
            return
        if self._left_out:
            logger.warning("%d calls of observers and interceptors were dropped: earlier ones are too slow", self._left_out)
            self._left_out = 0
        self.settle(function, *args)

    def settle(self, function: Callable[..., object], *args: Any) -> None:
        """As `tell`, and never left out."""
        try:
            self._told.submit(function, *args)
        except RuntimeError:  # the program ends, and some Pythons (3.12.0, 3.12.1) start no thread then: see `drain`
            self._left.append(functools.partial(function, *args))

    async def hear(self, function: Callable[..., T], *args: Any) -> T:
        """On the loop: as `ask`, after what was told before, and never left out."""
        reply: Future[T] = Future()
        self._told.submit(functools.partial(answer, only=True), reply, function, args)
        return await asyncio.wrap_future(reply)

    async def ask(self, function: Callable[..., T], *args: Any) -> T:
        """On the loop: what it returns or raises, called by the other thread."""
        return await self.ask_soon(function, *args)

    def ask_soon(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """As `ask`, without waiting."""
        reply: Future[T] = Future()
        self._asked.submit(functools.partial(answer, only=True), reply, function, args)
        return asyncio.wrap_future(reply)

    def drain(self, seconds: float) -> None:
        """Wait so long for what was told before; what no thread could be started for is called here."""
        self._told.drain(seconds)
        while self._left:
            try:
                self._left.pop(0)()
            except Exception:
                logger.exception("a callback of the program failed")

    def close(self, seconds: float) -> None:
        """Wait so long for what was told, and end the threads."""
        self.drain(seconds)
        self._told.stop()
        self._asked.stop()


class AskedAuthentication:
    """Credentials of the program's own making, had on a thread of their own; coroutines in a loop of their own there."""

    def __init__(self, callbacks: Callbacks, authentication: Authentication) -> None:
        self._callbacks = callbacks
        self._authentication = authentication

    @property
    def method_name(self) -> str:
        """Pulsar's name of the method."""
        return self._authentication.method_name

    async def data(self) -> bytes:
        """Credentials of the program's object, asked for in its own thread."""
        return await self._callbacks.ask(_data_of, self._authentication)


def _data_of(authentication: Authentication) -> bytes:
    data = authentication.data()
    return asyncio.run(_awaited(data)) if inspect.isawaitable(data) else data


async def _awaited(data: Awaitable[bytes]) -> bytes:
    return await data


def asked_authentication(callbacks: Callbacks, authentication: Authentication) -> Authentication:
    """The authentication itself where nothing of the program's is called, and nothing waits."""
    from pulsar_txn.client.net.oauth2 import OAuth2Authentication  # few programs need it

    validate_methods("authentication", authentication, ("data",), A_WAY_TO_AUTHENTICATE)
    ours = isinstance(authentication, (BasicAuthentication, TlsAuthentication, OAuth2Authentication))
    if ours or (isinstance(authentication, TokenAuthentication) and isinstance(authentication.token, Secret)):
        return authentication
    return AskedAuthentication(callbacks, authentication)


class AskedKeys:
    """A program's keys of end-to-end encryption.

    Public keys are fetched when the producer is made, and again whenever a data key is made: the answer is for the next
    one. Private keys are fetched when a message needs them; messages wait for that.
    """

    def __init__(self, callbacks: Callbacks, keys: CryptoKeys) -> None:
        self._callbacks = callbacks
        self._keys = keys
        self._public: dict[str, tuple[bytes, Mapping[str, str]] | Exception] = {}
        self._private: dict[tuple[str, tuple[tuple[str, str], ...]], asyncio.Future[bytes]] = {}

    def fetch(self, names: Sequence[str]) -> None:
        """In the program's thread: what it says of these names; errors are raised when the key is used."""
        for name in names:
            try:
                self._public[name] = self._keys.public_key(name)
            except Exception as error:  # noqa: BLE001 - it goes to who creates the producer
                self._public[name] = error

    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        """The key that was fetched before; it is fetched again meanwhile."""
        known = self._public[name]
        if isinstance(known, Exception):
            raise known
        self._callbacks.ask_soon(self._keys.public_key, name).add_done_callback(functools.partial(self._fetched, name))
        return known

    def _fetched(self, name: str, reply: asyncio.Future[tuple[bytes, Mapping[str, str]]]) -> None:
        if reply.cancelled():
            return
        if reply.exception() is None:
            self._public[name] = reply.result()
        else:
            logger.warning("the public key %r could not be loaded again, the old one stays in use: %r", name, reply.exception())

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """The key; KeyComing until the program has given it."""
        which = (name, tuple(sorted(metadata.items())))
        coming = self._private.get(which)
        if coming is None:
            coming = self._private[which] = self._callbacks.ask_soon(self._keys.private_key, name, metadata)
        if not coming.done():
            raise KeyComing(coming)
        del self._private[which]
        return coming.result()


def asked_keys(callbacks: Callbacks, keys: CryptoKeys | None) -> CryptoKeys | None:
    """The keys themselves where nothing of the program's is called: PEM in files or bytes."""
    if keys is None or (isinstance(keys, PemKeys) and not callable(keys.public) and not callable(keys.private)):
        return keys
    validate_methods("crypto_keys", keys, ("public_key", "private_key"), A_SOURCE_OF_KEYS)
    return AskedKeys(callbacks, keys)


class ToldObserver:
    """Stands for an observer of transactions, which is told on its thread, with sync transactions."""

    def __init__(self, callbacks: Callbacks, blocking_of: Callable[[AsyncTransaction], object], observer: object) -> None:
        self._callbacks = callbacks
        self._blocking_of = blocking_of
        self._observer = observer

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("txn_"):
            raise AttributeError(name)
        return functools.partial(self._tell, getattr(self._observer, name))

    def _tell(self, method: Callable[..., object], txn: AsyncTransaction, *arguments: object) -> None:
        self._callbacks.tell(method, self._blocking_of(txn), *arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToldObserver) and other._observer == self._observer

    def __hash__(self) -> int:
        return hash(self._observer)


class ToldInterceptor(ConsumerInterceptor):
    """Stands for a consumer's interceptor, which is told on its thread, with the sync consumer."""

    def __init__(self, callbacks: Callbacks, interceptor: ConsumerInterceptor) -> None:
        validate_methods("each of interceptors", interceptor, ("on_receive", "on_acknowledge"), A_CONSUMER_INTERCEPTOR)
        self._callbacks = callbacks
        self._interceptor = interceptor
        self.consumer: Any = None  # the blocking consumer, once it is made

    def on_receive(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        """Hand it over."""
        del consumer
        self._callbacks.tell(self._interceptor.on_receive, self.consumer, message)

    def on_acknowledge(
        self, consumer: AsyncConsumer[Any], messages: Sequence[Acknowledged], error: BaseException | None
    ) -> None:
        """Hand it over."""
        del consumer
        self._callbacks.tell(self._interceptor.on_acknowledge, self.consumer, messages, error)

    def on_negative_acknowledge(self, consumer: AsyncConsumer[Any], message: Acknowledged) -> None:
        """Hand it over."""
        del consumer
        self._callbacks.tell(self._interceptor.on_negative_acknowledge, self.consumer, message)
