"""Functions as the examples of Pulsar's documentation write them, each run from a file by its configuration.

The functions are our own; they make the calls that the official examples make: text in and out, native functions, state,
user configuration, publishing, message options, logs, secrets, custom objects, windows.
"""

from __future__ import annotations

import asyncio
import textwrap

import attrs
import pytest

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline import functions


@attrs.frozen
class Example:
    name: str
    source: str
    inputs: list[str]
    outputs: dict[str, list[str]]
    """By the last part of the topic's name; without keys of the runtime."""
    keys: dict = attrs.field(factory=dict)
    class_name: str = "Example"


EXAMPLES = [
    Example(
        "a class that answers",
        """
        from pulsar import Function

        class Example(Function):
            def __init__(self):
                pass

            def process(self, input, context):
                return input + "!"
        """,
        ["a", "b"],
        {"out": ["a!", "b!"]},
    ),
    Example("a native function", "def process(input):\n    return f'{input}!'\n", ["a"], {"out": ["a!"]}, class_name=""),
    Example(
        "counters",
        """
        from pulsar import Function

        class Example(Function):
            def process(self, item, context):
                for word in item.split():
                    context.incr_counter(word, 1)
                return item + "!"
        """,
        ["to be or not", "to be"],
        {"out": ["to be or not!", "to be!"], "state": ["to=2", "be=2", "or=1", "not=1"]},
    ),
    Example(
        "values in the state",
        """
        from pulsar import Function

        class Example(Function):
            def process(self, item, context):
                before = context.get_state("last")
                context.put_state("last", str(item))
                return None if before is None else before.decode("utf-8") + str(item)
        """,
        ["a", "b", "c"],
        {"out": ["ab", "bc"], "state": ["last=c"]},
    ),
    Example(
        "user configuration",
        """
        from pulsar import Function

        class Example(Function):
            def process(self, input, context):
                return input + context.get_user_config_value("suffix") + context.get_user_config_map()["more"]
        """,
        ["a"],
        {"out": ["a-x"]},
        {"userConfig": {"suffix": "-", "more": "x"}},
    ),
    Example(
        "publishing with options and a callback",
        """
        from pulsar import Function

        class Example(Function):
            def heard(self, result, message_id):
                self.logger.info("published: %s", result)

            def process(self, input, context):
                self.logger = context.get_logger()
                topic = context.get_user_config_value("topic")
                conf = {"properties": {k: v for k, v in [("input", input)]}, "partition_key": "k", "event_timestamp": 5}
                context.publish(topic, input * 2, properties={"a": "b"}, callback=self.heard, message_conf=conf)
        """,
        ["a"],
        {"more": ["aa"], "out": []},
        {"userConfig": {"topic": "{topic}-more"}},
    ),
    Example(
        "logs, metrics and nothing to say",
        """
        from pulsar import Function

        class Example(Function):
            def process(self, input, context):
                context.get_logger().info("got %s from %s", input, context.get_function_name())
                context.record_metric("seen", 1)
        """,
        ["a"],
        {"out": [], "log": ["got a from f"]},
        {"logTopic": "{topic}-log"},
    ),
    Example(
        "custom objects",
        """
        from pulsar import Function, SerDe

        class Pair(object):
            def __init__(self, a, b):
                self.a, self.b = a, b

        class PairSerDe(SerDe):
            def serialize(self, object):
                return ("%d,%d" % (object.a, object.b)).encode("utf-8")

            def deserialize(self, input_bytes):
                return Pair(*map(int, input_bytes.decode("utf-8").split(",")))

        class Example(Function):
            def process(self, input, context):
                return Pair(input.a + input.b, input.b + 1)
        """,
        ["1,2", "3,4"],
        {"out": ["3,3", "7,5"]},
        {"inputs": [], "customSerdeInputs": {"{topic}": "{module}.PairSerDe"}, "outputSerdeClassName": "{module}.PairSerDe"},
    ),
    Example(
        "a window",
        """
        from pulsar import Function

        class Example(Function):
            def process(self, inputs, context):
                context.incr_counter("windows", 1)
                return "%d: %d" % (context.get_counter("windows"), sum(inputs))
        """,
        ["1", "2", "3", "4", "5"],
        {"out": ["1: 3", "2: 7"], "state": ["windows=2"]},
        {"windowConfig": {"windowLengthCount": 2}},
    ),
]


def filled(value, names):
    """A configuration with the names of this run."""
    if isinstance(value, dict):
        return {filled(key, names): filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, names) for each in value]
    return value.replace("{topic}", names["topic"]).replace("{module}", names["module"]) if isinstance(value, str) else value


async def texts(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        message = await reader.read_next(10)
        if not topic.endswith("-state"):
            found.append(message.data.decode())
        elif message.key[0] != "\x00":
            found.append(f"{message.key}={message.data.decode()}")
    await reader.close()
    return found


@pytest.mark.parametrize("transaction", [{}, {"transactionMode": "MANAGED"}], ids=["plain", "managed"])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
async def test_the_function_of_an_example_runs_as_it_is(pulsar, topic, tmp_path, example, transaction):
    module = f"example_{topic[-12:]}"
    file = tmp_path / f"{module}.py"
    file.write_text(textwrap.dedent(example.source), encoding="utf-8")
    told = {
        "name": "f",
        "className": f"{module}.{example.class_name}".rstrip("."),
        "py": str(file),
        "inputs": [topic],
        "output": f"{topic}-out",
        "subName": "s",
        "subscriptionPosition": "EARLIEST",
        "retainOrdering": True,
        "state": {"stateTopic": f"{topic}-state"} if "state" in example.outputs else None,
        "transaction": transaction,
    } | filled(example.keys, {"topic": topic, "module": module})
    stop, done = asyncio.Event(), []
    wanted = len(example.inputs) - len(example.inputs) % 2 if "windowConfig" in told else len(example.inputs)

    def observer(event):
        done.extend(event.messages if event.kind == "processed" else ())
        if len(done) >= wanted:
            stop.set()

    async with AsyncClient(pulsar.service_url) as client:
        source = await client.create_producer(topic)
        for each in example.inputs:
            await source.send(each.encode())
        async with asyncio.timeout(40):
            await functions.run(client, told, stop=stop, observer=observer)
        for name, expected in example.outputs.items():
            found = await texts(client, f"{topic}-{name}")
            if name == "state":
                found = [f"{key}={value}" for key, value in dict(each.split("=") for each in found).items()]
            assert found == expected, name
