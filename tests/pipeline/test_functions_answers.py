"""The worker's answers: inputs, outputs and states in Pulsar's words, and the last minute of an instance."""

from __future__ import annotations

import base64

import attrs
import pytest

from pulsar_txn.client import MessageId
from pulsar_txn.client.messages import serialize_message_id
from pulsar_txn.pipeline.functions import FunctionConfig
from pulsar_txn.pipeline.functions.worker.supervisor import LastMinute
from pulsar_txn.pipeline.functions.worker.worker import RefusedError, given, input_of, is_output_of, shown

IN = "persistent://public/default/in"
SENT = MessageId(1, 2)


@attrs.frozen
class Output:
    properties: dict[str, str]


def output(topic=IN, message_id=SENT):
    encoded = base64.b64encode(serialize_message_id(message_id)).decode()
    return Output({"__pfn_input_topic__": topic, "__pfn_input_msg_id__": encoded})


def test_the_output_of_a_message_names_its_topic_and_its_entry():
    assert is_output_of(output(), SENT, IN)
    assert is_output_of(output(f"{IN}-partition-3", MessageId(1, 2, 3)), MessageId(1, 2, 3), IN)
    assert not is_output_of(output(f"{IN}-2"), SENT, IN)
    assert not is_output_of(output(message_id=MessageId(1, 3)), SENT, IN)
    assert not is_output_of(Output({}), SENT, IN)


def test_a_message_goes_to_the_only_input_or_to_the_one_that_was_named():
    one = FunctionConfig(class_name="f.F", inputs=("in",))
    two = FunctionConfig(class_name="f.F", inputs=("in", "more"))
    assert input_of(one, None) == input_of(one, "in") == input_of(two, IN) == IN
    for config, topic, said in ((two, None, "say which one"), (one, "other", "is no input"), (two, "other", "is no input")):
        with pytest.raises(RefusedError, match=said) as refused:
            input_of(config, topic)
        assert refused.value.status == 400


@pytest.mark.parametrize("value", [5, -(1 << 63), b"text", "ä".encode(), b"\xff\x00"])
def test_a_value_of_the_state_comes_back_as_it_was_shown(value):
    assert given(shown(value)) == value


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"stringValue": ""},
        {"byteValue": "no base64!"},
        {"numberValue": 1 << 63},
        {"numberValue": True},
        {"numberValue": "1"},
    ],
)
def test_a_state_without_a_value_is_refused(state):
    with pytest.raises(RefusedError):
        given(state)


def stats(received, successes=0, latency=0.0):
    return {"received": received, "processed_successfully": successes, "process_latency_ms": latency}


def test_the_last_minute_is_what_was_counted_since_a_minute_ago():
    minute = LastMinute()
    assert minute.figures(0.0)["receivedTotal"] == 0
    minute.note(0.0, stats(10, 10, 1.0))
    assert minute.figures(0.0)["receivedTotal"] == 10
    minute.note(30.0, stats(30, 20, 2.0))
    assert minute.figures(30.0)["receivedTotal"] == 30
    found = minute.figures(61.0)
    assert (found["receivedTotal"], found["processedSuccessfullyTotal"], found["avgProcessLatency"]) == (20, 10, 3.0)
    assert minute.figures(95.0)["receivedTotal"] == 0


def test_the_last_minute_of_a_process_that_began_again_counts_from_nothing():
    minute = LastMinute()
    minute.note(0.0, stats(100))
    minute.note(61.0, stats(3))
    assert minute.figures(61.0)["receivedTotal"] == 3
