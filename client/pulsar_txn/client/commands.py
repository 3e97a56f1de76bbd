"""The commands `produce`, `consume` and `ping` of the script `pulsar-txn`, found by the entry points `pulsar_txn.commands`.

click comes with the extra `broker`, as the script's other commands do: nothing else of the client imports this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectionLost,
    OperationTimeout,
    PulsarError,
    UsageError,
)
from pulsar_txn.client.net.authentication import Authentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerType, InitialPosition
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.txn.transactions import core_of

C = TypeVar("C", bound=Callable[..., Any])

_REFUSED: Final = 1
_USAGE: Final = 2
_UNAVAILABLE: Final = 69
_INTERRUPTED: Final = 130
_TYPES: Final = {
    "exclusive": ConsumerType.EXCLUSIVE,
    "shared": ConsumerType.SHARED,
    "failover": ConsumerType.FAILOVER,
    "key-shared": ConsumerType.KEY_SHARED,
}
_LINES_AT_ONCE: Final = 1000
_PATIENCE_SECONDS: Final = 5.0
_LONGEST_LINE_BYTES: Final = 8 << 20

_url = click.option(
    "--url", default="pulsar://127.0.0.1:6650", envvar="PULSAR_URL", show_default=True, help="Where the broker is."
)

_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


def _access(command: C) -> C:
    """The options of a command that say who asks, and whom it believes."""
    options = (
        click.option("--auth-token-file", type=click.Path(path_type=Path), help="File with a JSON Web Token."),
        click.option("--tls-trust-certs-file", type=_FILE, help="PEM file with the authority of the broker's certificate."),
        click.option("--tls-certificate-file", type=_FILE, help="PEM file with the certificate to show."),
        click.option("--tls-key-file", type=_FILE, help="PEM file with its key."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _shown(
    auth_token_file: Path | None,
    tls_trust_certs_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
) -> dict[str, Any]:
    """The arguments of the client. A token counts before a certificate, which is then shown and proves nothing."""
    files = {
        "tls_trust_certs_file": tls_trust_certs_file,
        "tls_certificate_file": tls_certificate_file,
        "tls_key_file": tls_key_file,
    }
    authentication: Authentication | None = None
    if auth_token_file is not None:
        if not auth_token_file.is_file():  # not shown: perhaps it is the token itself
            raise click.UsageError("--auth-token-file is no file; give the path of a file with the token")
        authentication = TokenAuthentication.from_file(auth_token_file)
    elif tls_certificate_file is not None:
        if tls_key_file is None:
            raise click.UsageError("--tls-certificate-file goes with --tls-key-file")
        authentication = TlsAuthentication(tls_certificate_file, tls_key_file)
    return {"authentication": authentication, **files}


@click.command("produce")
@click.argument("topic")
@click.argument("messages", nargs=-1)
@_url
@click.option("--key", "-k", help="Key of all messages.")
@click.option("--property", "-p", "properties", metavar="NAME=VALUE", multiple=True, help="May be repeated.")
@click.option("--transaction", "-t", is_flag=True, help="All messages in one transaction, visible together or not at all.")
@click.option("--txn-timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds.")
@click.option("--coordinator", metavar="URL", help="A coordinator beside the cluster, for the transaction.")
@click.option("--cluster", default="", help="The cluster's name there; not needed where there is one.")
@_access
def produce(
    topic: str,
    messages: tuple[str, ...],
    url: str,
    key: str | None,
    properties: tuple[str, ...],
    transaction: bool,
    txn_timeout: float,
    coordinator: str | None,
    cluster: str,
    **access: Path | None,
) -> None:
    """Send MESSAGES to TOPIC; without any, the lines of the standard input.

    Exit codes: 0 all are stored, 1 the broker refused, 2 usage, 69 no broker answers.
    """
    pairs = dict(_pair(each) for each in properties)
    options: dict[str, Any] = {"properties": pairs or None, "key": key}
    if coordinator and not transaction:
        raise click.UsageError("--coordinator is for a transaction: also give --transaction")
    where: dict[str, Any] = {"coordinator": coordinator, "cluster": cluster} | _shown(**access)
    _run(_produce(url, where, topic, messages, options, txn_timeout if transaction else None))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


async def _produce(
    url: str,
    where: dict[str, Any],
    topic: str,
    messages: tuple[str, ...],
    options: dict[str, Any],
    txn_timeout: float | None,
) -> None:
    async with AsyncClient(url, operation_timeout=_PATIENCE_SECONDS, **where) as client:
        producer = await client.create_producer(topic)
        if txn_timeout is None:
            count = await _send_all(producer, messages, options)
        else:
            async with client.transaction(timeout=txn_timeout) as txn:
                count = await _send_all(producer, messages, options | {"txn": txn})
        await producer.close()
    click.echo(f"{count} sent to {producer.topic}", err=True)


async def _send_all(producer: AsyncProducer[bytes], messages: tuple[str, ...], options: dict[str, Any]) -> int:
    count = 0
    async for part in _parts(messages):
        await asyncio.gather(*(producer.send(data, **options) for data in part))
        count += len(part)
    return count


async def _parts(messages: tuple[str, ...]) -> AsyncIterator[Sequence[bytes]]:
    """The messages, or the lines of the standard input, some at a time."""
    if messages:
        yield [os.fsencode(each) for each in messages]
        return
    part: list[bytes] = []
    async for line in _lines():
        part.append(line.removesuffix(b"\n"))
        if len(part) >= _LINES_AT_ONCE:
            yield part
            part = []
    yield part


async def _lines() -> AsyncIterator[bytes]:
    """Lines of the standard input; the loop goes on while a terminal or a pipe is waited for, a file is just read."""
    reader = asyncio.StreamReader(limit=_LONGEST_LINE_BYTES)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    except (ValueError, OSError, NotImplementedError):  # not a pipe, or a console of Windows
        for line in sys.stdin.buffer:
            yield line
        return
    while line := await reader.readline():
        yield line


@click.command("consume")
@click.argument("topic")
@click.option("--subscription", "-s", required=True, help="Subscription to consume from; created if absent.")
@_url
@click.option("--count", "-n", type=click.IntRange(0), default=1, show_default=True, help="End after so many; 0: never.")
@click.option("--wait", "-w", type=click.FloatRange(0), help="End with code 1 when none comes for so many seconds.")
@click.option("--type", "kind", type=click.Choice(list(_TYPES)), default="exclusive", show_default=True)
@click.option("--from-start", is_flag=True, help="A new subscription begins with the first message there is.")
@click.option("--peek", is_flag=True, help="Acknowledge nothing.")
@click.option("--json", "as_json", is_flag=True, help="One object per message instead of its bytes.")
@_access
def consume(
    topic: str,
    subscription: str,
    url: str,
    count: int,
    wait: float | None,
    kind: str,
    from_start: bool,
    peek: bool,
    as_json: bool,
    **access: Path | None,
) -> None:
    """Print messages of TOPIC, one per line, and acknowledge each.

    Exit codes: 0 as many as asked, 1 fewer came, or the broker refused, 2 usage, 69 no broker answers, 130 interrupted.
    """
    options: dict[str, Any] = {
        "consumer_type": _TYPES[kind],
        "initial_position": InitialPosition.EARLIEST if from_start else InitialPosition.LATEST,
    }
    shown = _shown(**access)
    if not _run(_consume(url, shown, topic, subscription, options, count, wait, acknowledge=not peek, as_json=as_json)):
        raise SystemExit(_REFUSED)


async def _consume(
    url: str,
    shown: dict[str, Any],
    topic: str,
    subscription: str,
    options: dict[str, Any],
    count: int,
    wait: float | None,
    *,
    acknowledge: bool,
    as_json: bool,
) -> bool:
    """True if as many came as were asked for."""
    async with AsyncClient(url, operation_timeout=_PATIENCE_SECONDS, **shown) as client:
        consumer = await client.subscribe(topic, subscription, **options)
        received = 0
        while not count or received < count:
            message = await _next(consumer, wait)
            if message is None:
                click.echo(f"{received} received, none for {wait:g} s", err=True)
                return False
            _print(message, as_json=as_json)
            received += 1
            if acknowledge:
                await consumer.acknowledge(message, receipt=True)
        await consumer.close()
    return True


async def _next(consumer: AsyncConsumer[bytes], wait: float | None) -> Message[bytes] | None:
    try:
        return await consumer.receive(wait)
    except OperationTimeout:
        return None


def _print(message: Message[bytes], *, as_json: bool) -> None:
    if not as_json:
        click.echo(message.data)
        return
    told: dict[str, Any] = {
        "id": str(message.message_id),
        "topic": message.topic,
        "key": message.key,
        "properties": dict(message.properties),
        "publishTime": message.publish_time_ms,
        "producer": message.producer_name,
        "txn": str(message.txn_id) if message.txn_id is not None else None,
        "redeliveries": message.redelivery_count,
        "data": message.data.decode(errors="backslashreplace"),
    }
    click.echo(json.dumps(told))


@click.command("ping")
@click.argument("url", default="pulsar://127.0.0.1:6650", envvar="PULSAR_TXN_PING")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Seconds, per host.")
@_access
def ping(url: str, timeout: float, **access: Path | None) -> None:
    """Ask whether a broker or a coordinator serves at URL, which may name several hosts: one that answers suffices.

    For health checks. Without options it shows no credentials, so a server that refuses it for that has answered, and it
    accepts any certificate; with --tls-trust-certs-file it checks it. Exit codes: 0 one answers, 2 usage, 69 none does.
    """
    logger = logging.getLogger("pulsar_txn.client")
    level = logger.level
    logger.setLevel(logging.ERROR)  # each host is tried once, and the error says what the warning would
    try:
        click.echo(_run(_ping(url, timeout, _shown(**access))), err=True)
    finally:
        logger.setLevel(level)


async def _ping(url: str, timeout: float, shown: dict[str, Any]) -> str:
    if "+ssl:" in url and shown["tls_trust_certs_file"] is None:
        shown = shown | {"tls_allow_insecure_connection": True, "tls_validate_hostname": False}
    async with AsyncClient(url, connection_timeout=timeout, **shown) as client:
        hosts = parse_service_url(url)
        for host in hosts[:-1]:
            with contextlib.suppress(ConnectionLost, OperationTimeout):
                return await _answer_of(client, host)
        return await _answer_of(client, hosts[-1])


async def _answer_of(client: AsyncClient, host: Address) -> str:
    try:
        return f"{(await core_of(client).pool.get(host)).server_version} serves at {host}"
    except (AuthenticationError, AuthorizationError):
        return f"a server that asks for credentials serves at {host}"


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; errors of the client become a sentence and an exit code."""
    try:
        with contextlib.suppress(BrokenPipeError):
            return asyncio.run(work)
    except UsageError as error:
        _end(error, _USAGE)
    except (ConnectionLost, OperationTimeout) as error:
        _end(error, _UNAVAILABLE)
    except PulsarError as error:
        _end(error, _REFUSED)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _end(error: PulsarError, code: int) -> None:
    click.echo(f"pulsar-txn: {error}", err=True)
    raise SystemExit(code) from error
