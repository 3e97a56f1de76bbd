"""The example functions and configurations that Apache Pulsar ships, run unchanged from where the distribution was unpacked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import attrs
import pytest
import stock_install
from targets import lacking

from pulsar_txn.client import AsyncClient, AvroSchema
from pulsar_txn.client.schemas import Int32
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions import FunctionConfig

STATE = {"stateTopic": "{topic}-state"}


@attrs.define
class AvroTestObject:
    """The record of the example."""

    baseValue: Int32 | None  # noqa: N815 - the example's name
    objectValue: str | None  # noqa: N815 - the example's name


@attrs.frozen
class Example:
    file: str
    class_name: str
    inputs: list[str]
    outputs: dict[str, list[str]]
    """By the last part of the topic's name."""
    keys: dict[str, Any] = attrs.field(factory=dict)
    yaml: str = ""
    """The configuration of the distribution whose keys are used, where `keys` says nothing else."""


EXAMPLES = [
    Example("exclamation_function", "ExclamationFunction", ["a", "b"], {"out": ["a!", "b!"]}, yaml="example-function-config"),
    Example("native_exclamation_function", "", ["a", "b"], {"out": ["a!", "b!"]}),
    Example(
        "wordcount_function",
        "WordCountFunction",
        ["to be or not", "to be"],
        {
            "out": ["to be or not!", "to be!"],
            "log": [f"The value is {count}" for count in (1, 1, 1, 1, 2, 2)],
            "state": ["to=2", "be=2", "or=1", "not=1"],
        },
        {"state": STATE, "logTopic": "{topic}-log"},
        yaml="example-stateful-function-config",
    ),
    Example(
        "config_based_append_function",
        "ConfigBasedAppendFunction",
        ["a"],
        {"out": ["a?"]},
        {"userConfig": {"config-key": "?"}},
    ),
    Example("config_based_append_function", "ConfigBasedAppendFunction", ["a"], {"out": ["a!"]}),
    Example("logging_function", "LoggingFunction", ["a"], {"out": ["a!"], "log": ["a-log"]}, {"logTopic": "{topic}-log"}),
    Example(
        "publish_function",
        "PublishFunction",
        ["a", "b"],
        {"out": [], "more": ["a!", "b!"]},
        {"userConfig": {"publish-topic": "{topic}-more"}},
    ),
    Example(
        "typed_message_builder_publish",
        "TypedMessageBuilderPublish",
        ["a"],
        {"out": [], "more": ["a! key=k input_topic={topic} said=yes"]},
        {"userConfig": {"publish-topic": "{topic}-more"}},
    ),
    Example(
        "custom_object_function",
        "CustomObjectFunction",
        ["1,2", "30,40"],
        {"out": ["12,26", "41,64"]},
        {
            "inputs": [],
            "customSerdeInputs": {"{topic}": "custom_object_function.CustomSerDe"},
            "outputSerdeClassName": "custom_object_function.CustomSerDe",
        },
    ),
    Example("void_function", "VoidFunction", ["a"], {"out": []}),
]


def examples() -> Path:
    """The folder of the distribution, which has it in its tarball."""
    home = stock_install.cache_dir() / f"apache-pulsar-{stock_install.TARBALL_VERSION}" / "examples"
    if not home.is_dir():
        lacking("pulsar", "no unpacked Pulsar whose examples could be run")
    return home


def filled(value: Any, topic: str) -> Any:
    """With the topic of this run."""
    if isinstance(value, dict):
        return {filled(key, topic): filled(each, topic) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, topic) for each in value]
    return value.replace("{topic}", topic) if isinstance(value, str) else value


def configured(example: Example, topic: str, transaction: dict[str, str]) -> dict[str, Any]:
    """The configuration of the distribution, if there is one, with a class in Python and this run's topics."""
    home = examples()
    keys = FunctionConfig.read(home / f"{example.yaml}.yaml") if example.yaml else {"name": "example"}
    return (
        keys
        | {
            "className": f"{example.file}.{example.class_name}".rstrip("."),
            "py": str(home / "python-examples" / f"{example.file}.py"),
            "inputs": [topic],
            "output": f"{topic}-out",
            "subscriptionPosition": "EARLIEST",
            "retainOrdering": True,
            "transaction": transaction,
        }
        | filled(example.keys, topic)
    )


async def run(client: AsyncClient, told: dict[str, Any], wanted: int) -> None:
    """Run it until so many messages are processed."""
    stop, done = asyncio.Event(), []

    def observer(event: functions.FunctionEvent) -> None:
        done.extend(event.messages if event.kind == "processed" else ())
        if len(done) >= wanted:
            stop.set()

    async with asyncio.timeout(40):
        await functions.run(client, told, stop=stop, observer=observer)


async def texts(client: AsyncClient, topic: str) -> list[str]:
    """What is in a topic: payloads, values of the state by key, or payloads with their key and properties."""
    found, state = [], {}
    async with await client.create_reader(topic) as reader:
        while await reader.has_message_available():
            message = await reader.read_next(10)
            text = message.data.decode()
            if topic.endswith("-more") and message.key is not None:
                said = {name: value for name, value in message.properties.items() if not name.startswith("__")}
                text += "".join(f" {each}" for each in [f"key={message.key}", *(f"{k}={v}" for k, v in said.items())])
            if topic.endswith("-state") and message.key[0] != "\x00":
                state[message.key] = text
            found.append(text)
    return [f"{key}={value}" for key, value in state.items()] if topic.endswith("-state") else found


@pytest.mark.parametrize("transaction", [{}, {"transactionMode": "MANAGED"}], ids=["plain", "managed"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.file)
async def test_an_example_of_pulsars_own_distribution_runs_unchanged(pulsar, topic, example, transaction):
    told = configured(example, topic, transaction)
    async with AsyncClient(pulsar.service_url) as client:
        source = await client.create_producer(topic)
        for each in example.inputs:
            await source.send(each.encode(), key="k", properties={"said": "yes"})
        await run(client, told, len(example.inputs))
        for name, expected in example.outputs.items():
            assert await texts(client, f"{topic}-{name}") == filled(expected, topic), name


async def test_the_avro_example_of_pulsars_own_distribution_runs_unchanged(pulsar, topic):
    schema = AvroSchema(AvroTestObject)
    example = Example("avro_schema_test_function", "AvroSchemaTestFunction", [], {})
    told = configured(example, topic, {"transactionMode": "MANAGED"}) | {
        "inputs": [],
        "customSchemaInputs": {topic: "avro"},
        "inputTypeClassName": "avro_schema_test_function.AvroTestObject",
        "outputSchemaType": "avro",
        "outputTypeClassName": "avro_schema_test_function.AvroTestObject",
    }
    async with AsyncClient(pulsar.service_url) as client:
        source = await client.create_producer(topic, schema=schema)
        await source.send(AvroTestObject(baseValue=5, objectValue="a"))
        await run(client, told, 1)
        async with await client.create_reader(f"{topic}-out", schema=schema) as reader:
            found = (await reader.read_next(10)).value
        assert (found.baseValue, found.objectValue) == (15, "a")


async def test_the_failing_example_of_pulsars_own_distribution_fails_message_by_message(pulsar, topic):
    example = Example("user_exception", "UserException", [], {})
    told = configured(example, topic, {"transactionMode": "MANAGED"}) | {
        "maxMessageRetries": 1,
        "deadLetterTopic": f"{topic}-dead",
    }
    errors: list[str] = []
    stop = asyncio.Event()

    def observer(event: functions.FunctionEvent) -> None:
        errors.append(f"{event.kind}: {event.error}")
        if event.kind == "dead_letter":
            stop.set()

    async with AsyncClient(pulsar.service_url) as client:
        await (await client.create_producer(topic)).send(b"a")
        async with asyncio.timeout(40):
            stats = await functions.run(client, told, stop=stop, observer=observer)
        assert await texts(client, f"{topic}-dead") == ["a"]
    assert errors[0] == "failed: this will not work"
    assert stats.user_exceptions >= 2


async def test_the_window_configuration_of_pulsars_own_distribution_makes_its_windows(pulsar, topic, tmp_path):
    """Its class is Java; the class in Python adds up as that one does."""
    module = f"added_{topic[-12:]}"
    source = "from pulsar import Function\n\nclass Add(Function):\n    def process(self, inputs, context):\n"
    (tmp_path / f"{module}.py").write_text(source + "        return sum(map(int, inputs))\n", encoding="utf-8")
    keys = FunctionConfig.read(examples() / "example-window-function-config.yaml")
    told = keys | {
        "className": f"{module}.Add",
        "py": str(tmp_path / f"{module}.py"),
        "inputs": [topic],
        "output": f"{topic}-out",
    }
    told |= {"subscriptionPosition": "EARLIEST", "state": filled(STATE, topic)}
    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        for number in range(1, 21):
            await producer.send(str(number).encode())
        await run(client, told, 5 + 10 + 10 + 10)
        assert await texts(client, f"{topic}-out") == ["15", "55", "105", "155"]
