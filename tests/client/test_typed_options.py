"""Options by name: checkers know them in both clients, and at run time a wrong one is answered with the right one."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Never, Union, Unpack, get_args, get_origin, get_type_hints

import attrs
import pytest

from pulsar_txn.client import AsyncClient, Client, InvalidConfiguration
from pulsar_txn.client._options import OFFICIAL
from pulsar_txn.client.loop.options import PipelineOptions, PipelineOptionsDict
from pulsar_txn.client.net.authentication import Authentication
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerOptionsDict, ReaderOptionsDict
from pulsar_txn.client.schema.base import PairSchema, Schema, TopicSchema, WrittenSchema
from pulsar_txn.client.schema.crypto import CryptoKeys
from pulsar_txn.client.send.options import ProducerOptions, ProducerOptionsDict

CLIENT = set(inspect.signature(AsyncClient.__init__).parameters) - {"self", "unknown"}
SET_BY_READERS = {"consumer_type", "consumer_name", "durable", "start_message_id", "start_message_id_inclusive"}
MEANINGLESS_FOR_READERS = SET_BY_READERS | {
    "ack_group_delay",
    "ack_receipt",
    "ack_timeout",
    "ack_timeout_backoff",
    "dead_letter_policy",
    "initial_position",
    "key_shared_policy",
    "negative_ack_backoff",
    "negative_ack_delay",
    "pattern_discovery_period",
    "priority_level",
    "regex_subscription_mode",
    "replicate_subscription_state",
    "subscription_properties",
}


def accepted(field: attrs.Attribute[Any]) -> object:
    """What a program may give for an option: what its converter takes, or the field's own type where that takes anything."""
    if field.converter is None:
        return field.type
    taken = next(iter(inspect.signature(field.converter).parameters.values())).name  # type: ignore[arg-type]
    given = get_type_hints(field.converter)[taken]
    return field.type if given is object else given


def flat(kind: object) -> frozenset[object]:
    """The members of a union, however it is written."""
    if get_origin(kind) in (Union, types.UnionType):
        return frozenset().union(*(flat(each) for each in get_args(kind)))
    return frozenset({kind})


OPTIONS = [
    (ProducerOptions, ProducerOptionsDict),
    (ConsumerOptions, ConsumerOptionsDict),
    (PipelineOptions, PipelineOptionsDict),
]


@pytest.mark.parametrize(("options", "typed"), OPTIONS)
def test_the_options_that_checkers_know_are_those_of_the_class_with_what_it_accepts(options: type, typed: type) -> None:
    fields = attrs.fields_dict(attrs.resolve_types(options))
    assert {name: flat(kind) for name, kind in get_type_hints(typed).items()} == {
        name: flat(accepted(field)) for name, field in fields.items()
    }


def test_options_of_readers_are_those_of_consumers_that_mean_something_without_a_subscription() -> None:
    consumers, readers = get_type_hints(ConsumerOptionsDict), get_type_hints(ReaderOptionsDict)
    assert {name: kind for name, kind in consumers.items() if name not in MEANINGLESS_FOR_READERS} == readers


def test_both_clients_have_the_same_arguments() -> None:
    ours, blocking = (dict(inspect.signature(kind.__init__).parameters) for kind in (AsyncClient, Client))
    shared, shared_blocking = ours.pop("coordinator"), blocking.pop("coordinator")
    assert ours == blocking
    assert str(shared).replace("AsyncCoordinator", "Coordinator") == str(shared_blocking)
    assert get_type_hints(AsyncClient.__init__)["unknown"] is Never


def typed_options(call: Callable[..., Any]) -> object:
    """The TypedDict of a call's options."""
    hint = get_type_hints(call)["options"]
    assert get_origin(hint) is Unpack
    return get_args(hint)[0]


@pytest.mark.parametrize("client", [AsyncClient, Client])
@pytest.mark.parametrize(
    ("call", "typed"),
    [
        ("create_producer", ProducerOptionsDict),
        ("subscribe", ConsumerOptionsDict),
        ("create_reader", ReaderOptionsDict),
        ("create_table_view", ReaderOptionsDict),
    ],
)
def test_both_clients_take_typed_options(client: type, call: str, typed: type) -> None:
    assert typed_options(getattr(client, call)) is typed
    overloads = typing.get_overloads(getattr(client, call))
    assert [typed_options(each) for each in overloads] == [typed, typed]


# --- checkers -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio
from datetime import timedelta

from pulsar_txn.client import (
    AccessMode,
    AsyncClient,
    AsyncProducer,
    AsyncTransaction,
    Client,
    CommitOutcomeUnknown,
    Compression,
    ConsumerType,
    Message,
    MessageId,
    Producer,
    StringSchema,
    Transaction,
    TransactionState,
)
from pulsar_txn.client.events import TransactionObserver
from pulsar_txn.client.pipelines import AsyncTransactionalBatch, PipelineResult
from pulsar_txn.client.schemas import INT64_SCHEMA, KeyValue, KeyValueSchema


async def good(client: AsyncClient) -> None:
    producer: AsyncProducer[bytes] = await client.create_producer("t", compression=Compression.LZ4, send_timeout=timedelta(1))
    texts: AsyncProducer[str] = await client.create_producer("t", schema=StringSchema(), batching=False, encryption_keys="k")
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED, receiver_queue_size=10)
    reader = await client.create_reader("t", start_inclusive=True, reader_name="r", read_compacted=True)
    view = await client.create_table_view("t", schema=StringSchema(), properties={"a": "b"})
    both = KeyValueSchema(StringSchema(), INT64_SCHEMA)
    pairs: AsyncProducer[KeyValue[str, int]] = await client.create_producer("p", schema=both)
    own: AsyncProducer[complex] = await client.create_producer("c", schema=OwnSchema())


async def units(client: AsyncClient) -> None:
    client.add_observer(Watch())
    producer = await client.create_producer("t", schema=StringSchema())
    consumer = await client.subscribe(["t", "u"], "s", schema=StringSchema())
    try:
        async with client.transaction(timeout=timedelta(minutes=1)) as txn:
            message: Message[str] = await consumer.receive(txn=txn)
            sent: MessageId | None = await producer.send(message.value, key=message.key, txn=txn)
            for each in await consumer.receive_many(max_messages=10, max_wait=0.5, txn=txn):
                producer.send_nowait(each.value, txn=txn)
    except CommitOutcomeUnknown as unknown:
        state: TransactionState = await unknown.resolve()
    async with consumer.transactional_batch(max_messages=10) as batch:
        texts: list[str] = [each.value for each in batch]

    async def handle(batch: AsyncTransactionalBatch[str]) -> None:
        for each in batch:
            await producer.send(each.value, txn=batch.txn)

    async def unit(txn: AsyncTransaction) -> int:
        return 3

    result: PipelineResult = await client.pipeline(consumer, handle, concurrency=3, max_messages=100)
    three: int = await client.run_transaction(unit, attempts=3)


class Watch(TransactionObserver):
    def txn_opened(self, txn: AsyncTransaction) -> None:
        print(txn.id)


class OwnSchema:
    info = None

    def encode(self, number: complex) -> bytes:
        return str(number).encode()

    def decode(self, data: bytes) -> complex:
        return complex(data.decode())


def also_good(client: Client) -> None:
    producer: Producer[bytes] = client.create_producer("t", access_mode=AccessMode.EXCLUSIVE, max_pending_messages=5)
    consumer = client.subscribe("t", "s", ack_timeout=timedelta(seconds=20))
    with client.transaction() as txn:
        producer.send(consumer.receive(txn=txn).data, txn=txn)
    place: MessageId = producer.send_nowait(b"x").result(3)


Client("pulsar://localhost", operation_timeout=timedelta(seconds=3), memory_limit=10, tls_validate_hostname=False)
"""

WRONG = {
    'await client.create_producer("t", compresion=Compression.LZ4)': "compresion",
    'await client.create_producer("t", batching_enabled=True)': "batching_enabled",
    'await client.create_producer("t", send_timeout="1 s")': "send_timeout",
    'await client.create_producer("t", schema=StringSchema(), compression="LZ4")': "compression",
    'await client.subscribe("t", "s", receiver_queue_size="ten")': "receiver_queue_size",
    'await client.subscribe("t", "s", message_listener=print)': "message_listener",
    'await client.create_reader("t", consumer_type=ConsumerType.SHARED)': "consumer_type",
    'await client.create_table_view("t", durable=True)': "durable",
    "consumer.transactional_batch(max_mesages=3)": "max_mesages",
    'await client.pipeline(consumer, handle, max_wait="soon")': "max_wait",
    'AsyncClient("pulsar://localhost", operation_timeout_seconds=3)': "operation_timeout_seconds",
    'AsyncClient("pulsar://localhost", operation_timeout="3 s")': "operation_timeout",
    'Client("pulsar://localhost", operation_timeout_seconds=3)': "operation_timeout_seconds",
    'blocker.create_producer("t", batchin=False)': "batchin",
    'blocker.subscribe("t", "s", consumer_type="Shared")': "consumer_type",
    'blocker.create_producer("t", compression="gzip")': "compression",
    'await client.subscribe("t", "s", initial_position="first")': "initial_position",
    'blocked.transactional_batch(max_messages="3")': "max_messages",
    "blocker.pipeline(blocked, lambda batch: None, concurency=2)": "concurency",
}


def mypy(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(text, encoding="utf-8")
    arguments = ["--strict", "--cache-dir", str(folder / "cache"), "--no-error-summary", "--hide-error-context", str(file)]
    return subprocess.run([sys.executable, "-m", "mypy", *arguments], capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.timeout(300)
def test_mypy_takes_what_is_right_and_finds_each_wrong_name_and_type(tmp_path: Path) -> None:
    wrong = PROGRAM + "\n\nasync def handle(batch: object) -> None: ...\n"
    wrong += "\n\nasync def bad(client: AsyncClient, blocker: Client) -> None:\n"
    wrong += '    consumer = await client.subscribe("t", "s")\n    blocked = blocker.subscribe("t", "s")\n'
    first = wrong.count("\n") + 1
    wrong += "".join(f"    {line}\n" for line in WRONG)
    said: dict[int, str] = {}
    for line in mypy(tmp_path, wrong).stdout.splitlines():
        number, _, text = line.partition("program.py:")[2].partition(":")
        said[int(number)] = said.get(int(number), "") + text
    assert {number: text for number, text in said.items() if number < first} == {}
    missed = [line for number, line in enumerate(WRONG, first) if WRONG[line] not in said.get(number, "")]
    assert missed == []


@pytest.mark.parametrize("protocol", [Schema, WrittenSchema, TopicSchema, PairSchema, CryptoKeys, Authentication])
def test_programs_may_call_the_arguments_as_they_like_in_what_they_implement(protocol: type) -> None:
    """Pyright, unlike mypy, compares the names of a protocol's arguments, unless they are given by place only."""
    methods = [each for name, each in vars(protocol).items() if inspect.isfunction(each) and not name.startswith("_")]
    named = [
        each.name
        for method in methods
        for each in list(inspect.signature(method).parameters.values())[1:]
        if each.kind is not inspect.Parameter.POSITIONAL_ONLY
    ]
    assert named == []


# --- at run time ----------------------------------------------------------------------------------------------------------


async def refusal(call: str, *arguments: object, **options: object) -> str:
    """What both clients say of the options; they say the same."""
    texts = set()
    for kind in (AsyncClient, Client):
        client = kind("pulsar://localhost:1")
        with pytest.raises(InvalidConfiguration) as caught:
            result = getattr(client, call)(*arguments, **options)
            if inspect.isawaitable(result):
                await result
        texts.add(str(caught.value))
        closing = client.close()
        if closing is not None:
            await closing
    assert len(texts) == 1
    return texts.pop()


@pytest.mark.parametrize(
    ("call", "arguments", "option", "answer"),
    [
        ("create_producer", ["t"], {"compresion": 1}, "did you mean 'compression'?"),
        ("create_producer", ["t"], {"batching_enabled": True}, "write batching="),
        ("create_producer", ["t"], {"receiver_queue_size": 1}, "receiver_queue_size"),
        ("subscribe", ["t", "s"], {"reciever_queue_size": 1}, "did you mean 'receiver_queue_size'?"),
        ("subscribe", ["t", "s"], {"message_listener": print}, "pipeline"),
        ("subscribe", ["t", "s"], {"is_read_compacted": True}, "write read_compacted="),
        ("create_reader", ["t"], {"is_read_compacted": True}, "write read_compacted="),
        ("create_reader", ["t"], {"start_message_id": 3}, "give it as start"),
        ("create_table_view", ["t"], {"subscription_name": "s"}, "leave it out"),
        ("create_table_view", ["t"], {"read_compactd": True}, "did you mean 'read_compacted'?"),
    ],
)
async def test_an_unknown_option_is_answered_with_the_right_one(
    call: str, arguments: list[object], option: dict[str, object], answer: str
) -> None:
    said = await refusal(call, *arguments, **option)
    assert f"{call}() has no option {next(iter(option))!r}" in said or "a reader takes no" in said
    assert answer in said


@pytest.mark.parametrize("kind", [AsyncClient, Client])
@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("operation_timeout_seconds", "write operation_timeout=, in seconds"),
        ("use_tls", "pulsar+ssl://"),
        ("conection_timeout", "did you mean 'connection_timeout'?"),
    ],
)
def test_an_unknown_option_of_the_client_is_answered_with_the_right_one(kind: Any, option: str, answer: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"\(\) has no option") as caught:
        kind("pulsar://localhost", **{option: 1})
    assert answer in str(caught.value)


@pytest.mark.parametrize("call", ["create_producer", "subscribe"])
async def test_interceptors_that_are_no_sequence_are_refused_by_both_clients(call: str) -> None:
    said = await refusal(call, *["t", "s"][: 1 if call == "create_producer" else 2], interceptors=5)
    assert "interceptors must be a sequence" in said


def test_every_option_of_the_official_client_is_known_here_or_answered() -> None:
    official = pytest.importorskip("pulsar").Client
    ours = {
        "__init__": CLIENT,
        "create_producer": {*get_type_hints(ProducerOptionsDict), "topic", "schema"},
        "subscribe": {*get_type_hints(ConsumerOptionsDict), "topic", "schema"},
        "create_reader": {*get_type_hints(ReaderOptionsDict), "topic", "schema", "reader_name", "start_inclusive"},
        "create_table_view": {*get_type_hints(ReaderOptionsDict), "topic", "schema"},
    }
    answered = {*OFFICIAL, "self", "service_url", "subscription_name", "start_message_id", "start_message_id_inclusive"}
    for call, known in ours.items():
        given = set(inspect.signature(getattr(official, call)).parameters)
        assert given <= known | answered, call


def test_no_answer_to_an_official_name_leads_to_an_option_that_does_not_exist() -> None:
    known = {
        *CLIENT,
        *get_type_hints(ProducerOptionsDict),
        *get_type_hints(ConsumerOptionsDict),
        "max_wait",
    }
    named = {
        answer.partition("=")[0].rpartition(" ")[2]
        for answer in OFFICIAL.values()
        if answer.startswith("write ") and "=" in answer
    }
    assert named <= known
    assert len(named) > 15


async def test_a_time_may_be_a_timedelta_in_every_option_of_seconds() -> None:
    for kind in (ProducerOptions, ConsumerOptions):
        fields = attrs.fields(attrs.resolve_types(kind))
        times = [field.name for field in fields if timedelta in flat(accepted(field))]
        assert times
        for name in times:
            assert getattr(kind(**{name: timedelta(seconds=7)}), name) == 7
