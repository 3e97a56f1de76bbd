"""Functions worker: asks a broker which instances to run, runs them, and reports.

`Answers` answers the broker's questions about a function: a message through it, a key of its state, the end of its
subscription.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp

from pulsar_txn.client import LATEST_ID, AsyncClient, Message, MessageId
from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.inside import parse_topic
from pulsar_txn.client.messages import deserialize_message_id
from pulsar_txn.client.schemas import AutoProduceSchema
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.runner import consumer_type_of
from pulsar_txn.pipeline.functions.sections import StateScope
from pulsar_txn.pipeline.functions.state.table import StateLog, Value, read_key
from pulsar_txn.pipeline.functions.worker.broker_api import BrokerApi, WorkerReplaced, function_config, specs_of
from pulsar_txn.pipeline.functions.worker.supervisor import Supervisor

OUTPUT_SECONDS: Final = 10.0
"""So long the output of a triggered message is waited for."""
_ENTRY_BITS: Final = 28
_LEAST_NUMBER: Final = -(1 << 63)

Question: TypeAlias = Mapping[str, Any]


class RefusedError(Exception):
    """The answer is no: an HTTP status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Answers:
    """Answers to the questions of a broker."""

    def __init__(self, broker_api: BrokerApi, supervisor: Supervisor) -> None:
        self._broker_api = broker_api
        self._supervisor = supervisor
        self._verbs: dict[str, Callable[[AsyncClient, FunctionConfig, Question], Awaitable[Any]]] = {
            "trigger": self._trigger,
            "querystate": self._query_state,
            "putstate": self._put_state,
            "unsubscribe": self._unsubscribe,
        }

    async def answer(self, question: Question) -> dict[str, Any]:
        """`value`, or `status` and `reason`. Errors are answers as well."""
        try:
            config = FunctionConfig.from_mapping(function_config(question["config"]))
            async with AsyncClient(question["serviceUrl"]) as client:
                return {"value": await self._verbs[question["verb"]](client, config, question)}
        except RefusedError as error:
            return {"status": error.status, "reason": str(error)}
        except InvalidConfiguration as error:
            return {"status": 400, "reason": str(error)}
        except (PulsarError, aiohttp.ClientError, TimeoutError, OSError) as error:
            return {"status": 500, "reason": f"{type(error).__name__}: {error}"}

    # ---- trigger

    async def _trigger(self, client: AsyncClient, config: FunctionConfig, question: Question) -> str | None:
        """The function's output for one message, in base64; None for a function without output."""
        topic = input_of(config, question["topic"])
        payload = base64.b64decode(question["data"])
        if config.output is None:
            await _sent(client, topic, payload)
            return None
        async with await client.create_reader(config.output, LATEST_ID) as reader:
            sent = await _sent(client, topic, payload)
            try:
                async with asyncio.timeout(OUTPUT_SECONDS):
                    while not is_output_of(message := await reader.read_next(), sent, topic):
                        pass
            except TimeoutError:
                raise RefusedError(
                    408,
                    f"{config.fqfn} gave no output in {OUTPUT_SECONDS:.0f} s; the message {sent} is in {topic} "
                    "and may still be processed",
                ) from None
        return base64.b64encode(message.data).decode()

    # ---- state

    async def _query_state(self, client: AsyncClient, config: FunctionConfig, question: Question) -> dict[str, Any]:
        key = question["key"]
        _check_key(config, key)
        found = (
            await read_key(client, config.state_topic, key) if await self._broker_api.has_topic(config.state_topic) else None
        )
        if found is None:
            raise RefusedError(404, f"key '{key}' doesn't exist.")
        value, position = found
        version = (position.ledger_id << _ENTRY_BITS) | position.entry_id
        return {"key": key, "version": version} | shown(value)

    async def _put_state(self, client: AsyncClient, config: FunctionConfig, question: Question) -> None:
        """Its instance is ended meanwhile: a state has one owner, and whoever writes takes it over."""
        key, value = question["key"], given(question["state"])
        _check_key(config, key)
        async with self._supervisor.without(config.fqfn):
            log = StateLog(client, config.state_topic)
            try:
                table = await log.open()
                table.set(key, value)
                for ticket in await log.write(table.to_write(), None):
                    await ticket
            finally:
                await log.close()

    # ---- deletion

    async def _unsubscribe(self, client: AsyncClient, config: FunctionConfig, _: Question) -> None:
        """Remove the subscription after the function's instances have ended."""
        if config.patterns:
            raise RefusedError(400, "its inputs are a pattern; remove the subscription from each topic")
        async with self._supervisor.without(config.fqfn):
            for topic in config.topics:
                if not await self._broker_api.has_topic(topic):
                    continue
                consumer = await client.subscribe(
                    topic, config.subscription, consumer_type=consumer_type_of(config), receiver_queue_size=1
                )
                await consumer.unsubscribe()


async def _sent(client: AsyncClient, topic: str, payload: bytes) -> MessageId:
    async with await client.create_producer(topic, schema=AutoProduceSchema(), batching=False) as producer:
        return await producer.send(payload)


def input_of(config: FunctionConfig, topic: str | None) -> str:
    """The input that a message is for. RefusedError when it is not clear, or not an input."""
    inputs = {str(parse_topic(each)): each for each in config.topics}
    if topic is None:
        if len(inputs) != 1:
            raise RefusedError(400, f"{config.fqfn} has {len(inputs)} inputs that are names: say which one, topic")
        return next(iter(inputs))
    name = str(parse_topic(topic))
    if name not in inputs:
        raise RefusedError(400, f"{name} is no input of {config.fqfn}; its inputs are {', '.join(inputs) or 'a pattern'}")
    return name


def is_output_of(message: Message[bytes], sent: MessageId, topic: str) -> bool:
    """True if the runtime made this message of that one."""
    given_topic, given_id = message.properties.get("__pfn_input_topic__"), message.properties.get("__pfn_input_msg_id__")
    if given_topic is None or given_id is None:
        return False
    found, of = deserialize_message_id(base64.b64decode(given_id)), parse_topic(given_topic)
    return found.position == sent.position and topic in (str(of), str(of.base))


def _check_key(config: FunctionConfig, key: str) -> None:
    if config.state is not None and config.state.scope is StateScope.PARTITION:
        raise RefusedError(
            400,
            "stateScope is PARTITION, so each input partition has a state of its own; "
            f"read the topics {config.state_topic}-0, …",
        )
    if not key or key[0] == "\x00":
        raise RefusedError(400, "a key of the state must be a text that does not begin with a null character")


def shown(value: Value) -> dict[str, Any]:
    """A value of the state as Pulsar's FunctionState has it."""
    if isinstance(value, int):
        return {"numberValue": value}
    try:
        return {"stringValue": value.decode()}
    except UnicodeDecodeError:
        return {"byteValue": base64.b64encode(value).decode()}


def given(state: Mapping[str, Any]) -> Value:
    """The value that a FunctionState has. RefusedError."""
    text, data, number = state.get("stringValue"), state.get("byteValue"), state.get("numberValue")
    if isinstance(text, str) and text:
        return text.encode()
    if isinstance(data, str):
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise RefusedError(400, "byteValue should be base64") from None
    if isinstance(number, int) and not isinstance(number, bool) and _LEAST_NUMBER <= number < -_LEAST_NUMBER:
        return number
    raise RefusedError(400, "the state has no stringValue, byteValue (base64) or numberValue (a whole number of 64 bits)")


logger = logging.getLogger("pulsar_txn.pipeline.functions.worker")

REPORT_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 1.0


async def work(admin_url: str, *, with_parent: bool) -> None:
    """Work until SIGTERM or SIGINT, or with `with_parent` until stdin ends. WorkerReplaced when another one takes over.

    While the broker does not answer, the functions run on.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    worker = f"worker-{os.getpid()}-{os.urandom(4).hex()}"
    with tempfile.TemporaryDirectory(prefix="pulsar-txn-functions-") as folder:
        async with aiohttp.ClientSession() as session:
            broker_api = BrokerApi(session, admin_url, worker, Path(folder))
            supervisor = Supervisor(broker_api.package)
            known = asyncio.Event()
            said: dict[str, list[dict[str, Any]]] = {}
            tasks = [
                asyncio.create_task(stop.wait()),
                asyncio.create_task(_follow(broker_api, supervisor, known, said)),
                asyncio.create_task(_report(broker_api, supervisor, worker, said)),
                asyncio.create_task(_answer_all(broker_api, Answers(broker_api, supervisor), known)),
            ]
            if with_parent:
                tasks.append(asyncio.create_task(_input_ends()))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await supervisor.end()


async def _follow(
    broker_api: BrokerApi, supervisor: Supervisor, known: asyncio.Event, said: dict[str, list[dict[str, Any]]]
) -> None:
    revision = ""
    while True:
        try:
            found = await broker_api.assignments(revision)
        except WorkerReplaced:
            raise
        except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
            logger.warning(
                "the broker did not list the functions to run (%s); the worker asks again", error or type(error).__name__
            )
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        known.set()
        if _epoch(found["revision"]) != _epoch(revision):
            said.clear()  # a broker that was started again has no reports
        if found["revision"] != revision:
            supervisor.want(specs_of(found["functions"]), found["serviceUrl"])
            revision = found["revision"]


def _epoch(revision: str) -> str:
    return revision.partition(".")[0]


async def _report(broker_api: BrokerApi, supervisor: Supervisor, worker: str, said: dict[str, list[dict[str, Any]]]) -> None:
    """Each second what has changed since it was `said` to this broker."""
    while True:
        reports = supervisor.reports(worker)
        for fqfn in said.keys() - reports.keys():
            del said[fqfn]
        for fqfn, report in reports.items():
            if said.get(fqfn) == report:
                continue
            said[fqfn] = report
            try:
                await broker_api.report(fqfn, report)
            except WorkerReplaced:
                raise
            except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
                said.pop(fqfn, None)
                logger.debug("the broker did not take the report of %s: %s", fqfn, error)
        await asyncio.sleep(REPORT_SECONDS)


async def _answer_all(broker_api: BrokerApi, answers: Answers, known: asyncio.Event) -> None:
    """Questions are answered side by side. `known`: the broker knows this worker."""
    await known.wait()
    answering: set[asyncio.Task[None]] = set()
    try:
        while True:
            try:
                asked = await broker_api.questions()
            except WorkerReplaced:
                raise
            except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
                logger.debug("the broker does not say what it asks: %s; asking again", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for question in asked:
                task = asyncio.create_task(_answer_one(broker_api, answers, question))
                answering.add(task)
                task.add_done_callback(answering.discard)
    finally:
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _answer_one(broker_api: BrokerApi, answers: Answers, question: dict[str, Any]) -> None:
    said = await answers.answer(question)
    try:
        await broker_api.answer(question["number"], said)
    except (aiohttp.ClientError, TimeoutError, PulsarError) as error:
        text = "the broker did not take the answer to %s of %s (%s); run the command again"
        logger.warning(text, question["verb"], question["fqfn"], error or type(error).__name__)


async def _input_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await reader.read()
