"""What a function may be told: official keys, and a sentence for every key that cannot work."""

from __future__ import annotations

import sys
import types

import attrs
import pytest

from pulsar_txn import compat
from pulsar_txn.client import Compression, ConsumerType, MessageId
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch, UsageError
from pulsar_txn.client.net.authentication import BasicAuthentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.pipeline.functions import (
    Function,
    FunctionConfig,
    FunctionRun,
    IdentitySerDe,
    PickleSerDe,
    ProcessingGuarantees,
    TransactionMode,
)
from pulsar_txn.pipeline.functions._command import authentication_of
from pulsar_txn.pipeline.functions._instance import sequence_of
from pulsar_txn.pipeline.functions._loading import load, process_of, serde_of
from pulsar_txn.pipeline.functions.runner import consumer_type_of

WHOLE = """
tenant: t
namespace: n
name: f
className: m.F
py: m.py
inputs: [a]
customSerdeInputs: {b: m.S}
inputSpecs: {c: {serdeClassName: m.S, receiverQueueSize: 7}, "x.*": {isRegexPattern: true}}
output: o
logTopic: l
processingGuarantees: ATLEAST_ONCE
retainKeyOrdering: true
subscriptionPosition: EARLIEST
userConfig: {k: [1, 2]}
forwardSourceMessageProperty: false
maxMessageRetries: 4
deadLetterTopic: d
parallelism: 2
runtime: PYTHON
producerConfig: {compressionType: ZSTD}
transaction:
  transactionMode: MANAGED
  transactionTimeoutMs: 5000
  transactionBatchingMaxEntries: 10
  transactionBatchingQuietPeriodMs: 20
"""


def test_a_file_with_official_keys_is_understood(tmp_path):
    file = tmp_path / "f.yml"
    file.write_text(WHOLE, encoding="utf-8")
    config = FunctionConfig.from_file(file)
    assert config.py == str(tmp_path / "m.py")
    assert config.topics == ("a", "b", "c")
    assert config.patterns == ("x.*",)
    assert (config.serde_of("a"), config.serde_of("b"), config.serde_of("c")) == (None, "m.S", "m.S")
    assert config.subscription == config.fqfn == "t/n/f"
    assert consumer_type_of(config) is ConsumerType.KEY_SHARED
    assert config.producer.compression is Compression.ZSTD
    assert attrs.astuple(config.transaction) == (TransactionMode.MANAGED, 5000, 10, 20)
    assert not config.forward_source_message_property


@pytest.mark.parametrize("key", ["isRegexPattern", "regexPattern"])
def test_an_input_is_a_pattern_under_both_names_that_pulsars_tools_write(key):
    config = FunctionConfig.from_mapping({"className": "m.F", "inputSpecs": {"x.*": {key: True}, "y": {key: False}}})
    assert (config.patterns, config.topics) == (("x.*",), ("y",))


def test_off_without_quotes_is_false_to_yaml_and_off_to_us(tmp_path):
    file = tmp_path / "f.yml"
    file.write_text("inputs: [a]\ntransaction: {transactionMode: OFF}\n", encoding="utf-8")
    assert not FunctionConfig.from_file(file).is_managed


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({}, ConsumerType.SHARED),
        ({"retainOrdering": True}, ConsumerType.FAILOVER),
        ({"retainKeyOrdering": True}, ConsumerType.KEY_SHARED),
        ({"processingGuarantees": "EFFECTIVELY_ONCE"}, ConsumerType.FAILOVER),
    ],
    ids=str,
)
def test_the_order_that_is_asked_for_chooses_the_subscription(keys, kind):
    assert consumer_type_of(FunctionConfig.from_mapping({"inputs": ["a"], **keys})) is kind


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": [1]}, "inputs must be a list of texts|inputs must be a text"),
        ({"output": "a"}, "must not feed itself"),
        ({"parallelizm": 2}, "do you mean parallelism"),
        ({"parallelism": 0}, "parallelism must be a whole number, at least 1"),
        ({"parallelism": True}, "parallelism"),
        ({"processingGuarantees": "TWICE"}, "processingGuarantees must be one of ATLEAST_ONCE"),
        ({"retainOrdering": "yes"}, "retainOrdering must be true or false"),
        ({"retainOrdering": True, "retainKeyOrdering": True}, "exclude each other"),
        ({"runtime": "JAVA"}, "runtime"),
        ({"jar": "f.jar"}, "jar"),
        ({"windowConfig": {}}, "one of windowLengthCount and windowLengthDurationMs"),
        ({"windowConfig": {"windowLengthCount": 2, "windowLengthDurationMs": 2}}, "one of windowLengthCount"),
        ({"windowConfig": {"windowLengthCount": 2, "slidingIntervalDurationMs": 1}}, "give slidingIntervalCount"),
        ({"windowConfig": {"windowLengthDurationMs": 2, "slidingIntervalCount": 1}}, "give slidingIntervalDurationMs"),
        ({"windowConfig": {"windowLengthCount": 2, "slidingIntervalCount": 3}}, "longer than the window"),
        ({"windowConfig": {"windowLengthCount": 2, "maxLagMs": 3}}, "need windowLengthDurationMs"),
        ({"windowConfig": {"windowLengthDurationMs": 2, "lateDataTopic": "l"}}, "needs timestampExtractorClassName"),
        ({"windowConfig": {"windowLength": 2}}, "windowConfig.windowLength"),
        ({"windowConfig": {"windowLengthCount": 2}, "parallelism": 2}, "set parallelism: 1"),
        ({"windowConfig": {"windowLengthCount": 2}, "topicsPattern": "a.*"}, "name the inputs"),
        ({"windowConfig": {"windowLengthCount": 2}, "retainKeyOrdering": True}, "leave out retainKeyOrdering"),
        ({"windowConfig": {"windowLengthCount": 2}, "maxMessageRetries": 2, "subName": "s"}, "handle bad messages"),
        ({"windowConfig": {"windowLengthCount": 2}, "processingGuarantees": "MANUAL"}, "leave processingGuarantees out"),
        ({"windowConfig": {"windowLengthCount": 2, "slidingIntervalCount": 1}, "inputs": ["a", "b"]}, "takes one input"),
        ({"state": {"stateScope": "KEY"}}, "state.stateScope must be one of FUNCTION, PARTITION"),
        ({"state": {"stateScope": "PARTITION"}}, "set retainOrdering: true"),
        ({"state": {"stateScope": "PARTITION"}, "retainOrdering": True, "inputs": ["a", "b"]}, "takes one input topic"),
        ({"autoAck": False}, "MANUAL"),
        ({"outputSchemaType": "avro", "outputSerdeClassName": "m.S"}, "give one of them"),
        ({"customSchemaInputs": {"b": "avro"}, "customSerdeInputs": {"b": "m.S"}}, "give one of them"),
        ({"skipToLatest": True}, "subscriptionPosition"),
        ({"inputSpecs": {"b": {"schemaTypo": "avro"}}}, "inputSpecs.b.schemaTypo"),
        ({"producerConfig": {"cryptoConfig": {}}}, "producerConfig.cryptoConfig"),
        ({"transaction": {"transactionMode": "MAYBE"}}, "transaction.transactionMode must be one of OFF, MANAGED"),
        ({"transaction": {"mode": "MANAGED"}}, "transaction.mode"),
        ({"transaction": {"transactionMode": "MANAGED"}, "processingGuarantees": "MANUAL"}, "leave processingGuarantees out"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "parallelism": 2}, "parallelism"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "topicsPattern": "a.*"}, "topicsPattern"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "retainKeyOrdering": True}, "retainKeyOrdering"),
        ({"processingGuarantees": "ATMOST_ONCE", "timeoutMs": 1000}, "timeoutMs"),
        ({"processingGuarantees": "ATMOST_ONCE", "maxMessageRetries": 1}, "maxMessageRetries"),
        ({"retainOrdering": True, "maxMessageRetries": 1}, "maxMessageRetries"),
        ({"maxMessageRetries": 3}, "public/default/function cannot be part of a topic's name"),
        ({"deadLetterTopic": "d"}, "deadLetterTopic without maxMessageRetries"),
        ({"topicsPattern": "("}, "no regular expression"),
        ({"fqfn": "f"}, "tenant/namespace/name"),
        ({"userConfig": 1}, "userConfig must be a mapping"),
    ],
    ids=str,
)
def test_a_key_that_cannot_work_is_named_with_what_to_do(keys, said):
    with pytest.raises(InvalidConfiguration, match=said):
        FunctionConfig.from_mapping({"inputs": ["a"], **keys})


@pytest.mark.parametrize("key", ["resources", "runtimeFlags", "cleanupSubscription", "customRuntimeOptions"])
def test_a_key_without_effect_is_warned_of(key):
    with pytest.warns(UserWarning, match=f"{key} has no effect"):
        FunctionConfig.from_mapping({"inputs": ["a"], key: "x"})


@pytest.mark.parametrize("text", ["a: [", "just text", "- 1"])
def test_a_file_that_holds_no_keys_is_refused(tmp_path, text):
    file = tmp_path / "f.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match=r"f\.yml is no"):
        FunctionConfig.from_file(file)


def test_without_a_yaml_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidConfiguration, match=r"\.\[functions\]"):
        FunctionConfig.from_file(tmp_path / "f.yml")


def test_a_name_without_its_own_is_the_class_and_fqfn_says_all_three():
    assert FunctionConfig.from_mapping({"inputs": ["a"], "className": "m.F"}).fqfn == "public/default/F"
    assert FunctionConfig.from_mapping({"inputs": ["a"], "fqfn": "t/n/f"}).fqfn == "t/n/f"


# --- the function -----------------------------------------------------------------------------------------------------


class WithContext(Function):
    def process(self, value, context):
        return value, context


async def coroutine(value):
    return value


def test_what_can_be_a_function():
    native = types.ModuleType("native")
    native.process = lambda value: value
    assert process_of(WithContext).takes_context
    assert process_of(WithContext()).takes_context
    assert not process_of(native).takes_context
    assert process_of(lambda value, context: value).takes_context
    assert not process_of(str.upper).takes_context
    assert not process_of(lambda value, limit=3: value).takes_context
    assert process_of(lambda value, context=None: value).takes_context
    assert process_of(lambda *both: both).takes_context
    assert process_of(coroutine).is_async
    assert not process_of(WithContext).is_async


@pytest.mark.parametrize("thing", [types.ModuleType("empty"), 3, "text"], ids=repr)
def test_what_cannot_be_a_function_is_refused(thing):
    with pytest.raises(InvalidConfiguration):
        process_of(thing)


def test_a_file_is_loaded_from_where_it_is_with_what_stands_beside_it(tmp_path):
    (tmp_path / "beside_it.py").write_text("MARK = '!'\n", encoding="utf-8")
    (tmp_path / "of_a_file.py").write_text(
        "from beside_it import MARK\nclass F:\n    def process(self, input, context):\n        return input + MARK\n",
        encoding="utf-8",
    )
    found = load("of_a_file.F", str(tmp_path / "of_a_file.py"))
    assert found().process("a", None) == "a!"
    assert load("of_a_file", str(tmp_path)).F is found
    with pytest.raises(InvalidConfiguration, match="has no G"):
        load("of_a_file.G", str(tmp_path))


def test_a_module_that_lacks_something_says_what_and_not_that_it_is_missing(tmp_path):
    (tmp_path / "lacks_something.py").write_text("import no_such_library\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load("lacks_something", str(tmp_path))


def test_a_run_without_a_function_says_what_is_missing():
    with pytest.raises(InvalidConfiguration, match="className"):
        FunctionRun(None, {"inputs": ["a"]})


# --- serdes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [42, 4.5, 2 + 3j, "text", b"\xff\x00"], ids=repr)
def test_identity_reads_what_it_wrote(value):
    serde = IdentitySerDe()
    read = serde.deserialize(serde.serialize(value))
    assert (read, type(read)) == (value, type(value))


def test_identity_is_the_official_one():
    from pulsar.functions.serde import IdentitySerDe as Official

    for payload in (b"1", b"1.5", b"1j", b"", b"x", b"\xff", b" 7 ", b"nan_"):
        mine, theirs = IdentitySerDe().deserialize(payload), Official().deserialize(payload)
        assert (mine, type(mine)) == (theirs, type(theirs))


def test_identity_refuses_other_types():
    with pytest.raises(SchemaMismatch, match="list"):
        IdentitySerDe().serialize([1])


@pytest.mark.parametrize("name", ["serde.PickleSerDe", "pulsar.functions.serde.PickleSerDe", "mine.PickleSerDe"])
def test_pickle_is_refused_and_says_why(name):
    with pytest.raises(InvalidConfiguration, match="runs code of whoever can write"):
        serde_of(name, None)
    with pytest.raises(InvalidConfiguration, match="runs code of whoever can write"):
        PickleSerDe()


def test_a_class_that_is_no_serde_is_refused():
    with pytest.raises(InvalidConfiguration, match="needs serialize"):
        serde_of(f"{WithContext.__module__}.WithContext", None)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_compat_has_the_official_names_in_the_official_places():
    import pulsar
    from pulsar.functions import context as official_context

    from pulsar_txn.compat.functions import context, function, serde

    assert compat.Function is function.Function
    assert compat.Context is context.Context
    assert (compat.SerDe, compat.IdentitySerDe, compat.PickleSerDe) == (serde.SerDe, serde.IdentitySerDe, serde.PickleSerDe)
    theirs = {name for name in vars(official_context.Context) if not name.startswith("_")}
    assert theirs - set(vars(context.Context)) == set()
    assert {name for name in ("Function", "Context", "SerDe") if hasattr(pulsar, name)} == {"Function", "Context", "SerDe"}


def test_sequence_ids_ascend_with_messages_and_say_when_they_cannot():
    ids = [MessageId(1, 0), MessageId(1, 1, -1, 0), MessageId(1, 1, -1, 1), MessageId(1, 2), MessageId(2, 0)]
    numbers = [sequence_of(each) for each in ids]
    assert sorted(set(numbers)) == numbers
    assert sequence_of(MessageId(2**27 - 1, 2**24 - 1, -1, 2**12 - 1)) == 2**63 - 1
    with pytest.raises(UsageError) as raised:
        sequence_of(MessageId(2**27, 0))
    assert raised.value.fatal


@pytest.mark.parametrize(
    ("plugin", "params", "expected"),
    [
        (None, None, None),
        (None, "token:abc", TokenAuthentication("abc")),
        ("org.apache.pulsar.client.impl.auth.AuthenticationToken", '{"token": "abc"}', TokenAuthentication("abc")),
        (
            "org.apache.pulsar.client.impl.auth.AuthenticationBasic",
            '{"userId": "u", "password": "p"}',
            BasicAuthentication("u", "p"),
        ),
        (
            "org.apache.pulsar.client.impl.auth.AuthenticationTls",
            "tlsCertFile:/c.pem,tlsKeyFile:/k.pem",
            TlsAuthentication("/c.pem", "/k.pem"),
        ),
    ],
)
def test_the_official_spellings_of_credentials_are_understood(plugin, params, expected):
    assert authentication_of(plugin, params) == expected


def test_a_token_in_a_file_is_read_when_it_is_needed(tmp_path):
    file = tmp_path / "token"
    found = authentication_of(None, f"file://{file}")
    file.write_text("later\n", encoding="utf-8")
    assert found.data() == b"later"


def test_guarantees_have_the_official_names():
    assert {each.name for each in ProcessingGuarantees} == {"ATLEAST_ONCE", "ATMOST_ONCE", "EFFECTIVELY_ONCE", "MANUAL"}


@pytest.mark.parametrize(
    "bomb",
    [
        "userConfig: &a {again: *a}\n",
        "userConfig:\n  a0: &a0 [x, x]\n" + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    ],
    ids=["itself", "many"],
)
def test_a_file_whose_anchors_stand_for_too_much_is_refused_before_it_is_written_out(tmp_path, bomb):
    (tmp_path / "f.yml").write_text(f"className: f.F\npy: f.py\n{bomb}", encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match="more than 100000 values"):
        FunctionConfig.from_file(tmp_path / "f.yml")
