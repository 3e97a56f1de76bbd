"""What a program sees of a call that fails: one warning while the client still tries, and a short traceback."""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path

import pytest
from fake_broker import FakeBroker, fake_client

import pulsar_txn.client
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import (
    AsyncClient,
    AuthenticationError,
    Client,
    ConnectionLost,
    InvalidConfiguration,
    OperationTimeout,
    TokenAuthentication,
    TopicNotFound,
)
from pulsar_txn.client.errors import InvalidTopicName
from pulsar_txn.client.net.runtime import AsyncioRuntime, UnknownHost
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command


class Failing(AsyncioRuntime):
    """A world in which no connection can be made, for a reason that is given."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    async def connect(self, factory, host, port, *, ssl_context, server_hostname):
        raise self.error


UNKNOWN_HOST = UnknownHost(-2, "Name or service not known")
NOT_THERE = ConnectionRefusedError(111, "Connection refused")
INSIDE = str(Path(pulsar_txn.client.__file__).parent)
REFUSED = "pulsar://localhost:1"


def frames_inside(error: BaseException) -> int:
    """How many frames of the client, and of asyncio, a traceback shows, those of chained errors included."""
    inside, shown = 0, [error]
    while shown:
        here = shown.pop()
        files = [frame.filename for frame in traceback.extract_tb(here.__traceback__)]
        inside += sum(file.startswith(INSIDE) or "/asyncio/" in file or "/concurrent/" in file for file in files)
        shown += [
            each for each in (here.__cause__, None if here.__suppress_context__ else here.__context__) if each is not None
        ]
    return inside


# --- tracebacks ---------------------------------------------------------------------------------------------------------


async def create(client):
    await client.create_producer("t")


async def wrong_topic(client):
    await client.create_producer("a//b/c")


async def receive(client):
    await (await client.subscribe("t", "s")).receive(timeout=0.01)


CALLS = {
    "no broker": (REFUSED, create, ConnectionLost, NOT_THERE),
    "no such host": ("pulsar://no-such-host.invalid:6650", create, ConnectionLost, UNKNOWN_HOST),
    "TLS to a plain port": ("pulsar+ssl://{}", create, ConnectionLost, None),
    "a bad topic": ("pulsar://{}", wrong_topic, InvalidTopicName, None),
    "nothing to receive": ("pulsar://{}", receive, OperationTimeout, None),
}


@pytest.mark.parametrize("name", CALLS)
async def test_the_traceback_of_a_failed_call_is_short(name):
    url, call, kind, reason = CALLS[name]
    runtime = None if reason is None else Failing(reason)
    seconds = 2 if reason is None else 0.3  # a broker has time for its part, whatever else the machine does
    async with Standalone(None) as broker:
        where = url.format(broker.service_url.partition("//")[2])
        async with AsyncClient(where, operation_timeout=seconds, runtime=runtime) as client:
            with pytest.raises(kind) as caught:
                await call(client)
    assert frames_inside(caught.value) <= 3
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["no broker", "no such host", "a bad topic"])
def test_the_traceback_of_a_failed_call_of_the_blocking_client_is_short(name, url):
    where, _, kind, reason = CALLS[name]
    runtime = None if reason is None else Failing(reason)
    client = Client(where.format(url.partition("//")[2]), operation_timeout=0.3, runtime=runtime)
    with client, pytest.raises(kind) as caught:
        client.create_producer("a//b/c" if kind is InvalidTopicName else "t")
    assert frames_inside(caught.value) <= 6
    assert caught.value.__cause__ is None


async def answered_with(name, code):
    """What `create_producer` raises when the broker answers a command with an error."""
    broker = FakeBroker()
    broker.on[name] = lambda _pipe, body: command("error", request_id=getattr(body, "request_id", 0), error=code, message="no")
    async with fake_client(broker, authentication=TokenAuthentication("wrong")) as client:
        with pytest.raises((AuthenticationError, TopicNotFound)) as caught:
            await client.create_producer("t")
    return caught.value


@pytest.mark.parametrize(("name", "code"), [("connect", 3), ("producer", 11)])
async def test_the_traceback_of_what_a_broker_refuses_is_short(name, code):
    error = await answered_with(name, code)
    assert frames_inside(error) <= 6
    assert error.__cause__ is None


async def test_the_reason_of_a_program_stays_with_its_traceback():
    def token():
        raise LookupError("the vault is sealed")

    async with fake_client(FakeBroker(), authentication=TokenAuthentication(token)) as client:
        with pytest.raises(AuthenticationError) as caught:
            await client.create_producer("t")
    assert isinstance(caught.value.__cause__, LookupError)
    assert traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].name == "token"


def test_the_frames_of_a_blocking_programs_handler_stay(url):
    def handle(batch):
        raise InvalidConfiguration("of the handler")

    with Client(url) as client:
        client.create_producer("handled").send(b"x")
        consumer = client.subscribe("handled", "s", initial_position=1)
        with pytest.raises(InvalidConfiguration) as caught:
            client.pipeline(consumer, handle, on_poison="raise", max_aborts=1)
    assert "handle" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_unknown_host_is_named_with_what_to_check():
    client = Client("pulsar://no-such-host.invalid:6650", operation_timeout=0.2, runtime=Failing(UNKNOWN_HOST))
    with client, pytest.raises(ConnectionLost, match=r"'no-such-host\.invalid'.*DNS"):
        client.create_producer("t")


# --- the warning --------------------------------------------------------------------------------------------------------


def warnings_of(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING and "trying again" in record.message]


async def test_a_connection_that_fails_is_warned_of_with_its_address_while_the_call_still_tries(caplog):
    async with AsyncClient(REFUSED, initial_backoff=0.01, max_backoff=0.01) as client:
        call = asyncio.create_task(client.create_producer("t"))
        while not warnings_of(caplog):  # noqa: ASYNC110 - a log record tells nobody
            await asyncio.sleep(0.01)
        assert not call.done()
        assert "localhost:1" in warnings_of(caplog)[0].message
        call.cancel()


async def test_an_outage_is_warned_of_once_however_many_attempts_fail(caplog):
    broker = FakeBroker()
    attempts, refuse, enough = [], True, asyncio.Event()
    async with fake_client(broker, initial_backoff=0.01, max_backoff=0.01) as client:
        connect = core_of(client).runtime.connect

        async def connecting(*arguments, **options):
            attempts.append(refuse)
            if refuse:
                if attempts.count(True) % 5 == 0:
                    enough.set()
                raise ConnectionRefusedError("no")
            return await connect(*arguments, **options)

        core_of(client).runtime.connect = connecting
        for outage in (1, 2):
            refuse = True
            call = asyncio.create_task(client.create_producer("t"))
            await enough.wait()
            enough.clear()
            refuse = False
            producer = await call
            assert len(warnings_of(caplog)) == outage
            await producer.close()
            for connection in core_of(client).pool.current():
                connection.close()
        assert len(attempts) >= 12


async def test_what_no_attempt_mends_is_raised_and_not_warned_of(caplog):
    await answered_with("connect", 3)
    assert warnings_of(caplog) == []
