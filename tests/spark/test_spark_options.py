"""Options and columns: what is wrong is said before anything runs, with what to do."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from pulsar_txn.client.authentication import OAuth2Authentication
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.pipeline.spark import OptionError, PulsarDataSource, PulsarTxnDataSource
from pulsar_txn.pipeline.spark.connecting import make_client
from pulsar_txn.pipeline.spark.options import TABLE, Query, answer_to, read_options
from pulsar_txn.pipeline.spark.sink.delivery import control_topic_of, sink_id
from pulsar_txn.pipeline.spark.source.layout import SCHEMA
from pulsar_txn.pipeline.spark.source.offsets import from_offset, parse_user_offset
from pulsar_txn.pipeline.spark.source.tasks import Work

URL = {"service.url": "pulsar://localhost:6650"}


def columns(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, '"service.url" is missing'),
        ({**URL, "maxMessagePerTrigger": "5"}, "did you mean 'maxMessagesPerTrigger'"),
        ({**URL, "maxMessagesPerTrigger": "many"}, "'many' is not a whole number above 0"),
        ({**URL, "commitTimeoutMs": "0"}, "'0' is not a whole number above 0"),
        ({**URL, "topicsPattern": "a("}, "'a\\(' is not a regular expression"),
        ({**URL, "startingTimestamp": "noon"}, "'noon' is not a time from 1970 to 9999: milliseconds"),
        ({**URL, "startingTimestamp": '{"t": "noon"}'}, "is not a time from 1970 to 9999"),
        ({**URL, "failOnDataLoss": "perhaps"}, "'perhaps' is not true or false"),
        ({**URL, "compression": "rar"}, "not one of none, lz4"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options(options)


def test_names_are_read_in_any_case_and_by_their_aliases() -> None:
    options = read_options({"SERVICEURL": "pulsar://h", "TOPICS": " a , b", "failondataloss": "FALSE", "compression": "ZSTD"})
    assert (options.service_url, options.topics, options.fail_on_data_loss) == ("pulsar://h", ("a", "b"), False)
    assert options.compression == 3


def test_what_spark_adds_is_let_through() -> None:
    assert read_options({**URL, "path": "x", "checkpointLocation": "y", "queryName": "q"}).service_url


@pytest.mark.parametrize("name", ["completely", "value.converter", "topc", "x", "starting.offset"])
def test_no_option_is_ignored_whatever_it_resembles(name: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{re.escape(name)}'"):
        read_options({**URL, name: "1"})


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("subscribe", '"topic"'),
        ("kafka.bootstrap.servers", '"service.url"'),
        ("kafka.sasl.jaas.config", '"tokenFile"'),
        ("kafka.fetch.max.bytes", "source for Pulsar"),
        ("maxOffsetsPerTrigger", '"maxMessagesPerTrigger"'),
        ("predefinedSubscription", '"subscriptionName"'),
        ("includeHeaders", '"properties"'),
        ("subscribePattern", '"topicsPattern"'),
        ("startingTime", '"startingTimestamp"'),
        ("startingOffsetsByTimestamp", '"startingTimestamp"'),
        ("pulsar.reader.receiverQueueSize", "pulsar.client"),
        ("authPluginClassName", '"pulsar.client.authPluginClassName"'),
    ],
)
def test_options_of_other_sources_are_answered_with_ours(name: str, answer: str) -> None:
    for given in (name, name.lower()):  # Spark hands over lower case
        with pytest.raises(OptionError, match=answer):
            read_options({**URL, given: "1"}, Query.STREAM_READ)


def test_no_answer_is_given_to_an_option_that_is_ours() -> None:
    assert [name for name in TABLE if answer_to(name) is not None] == []


@pytest.mark.parametrize(
    ("name", "query", "message"),
    [
        ("endingOffsets", Query.STREAM_READ, "is for spark.read, and has no effect on spark.readStream"),
        ("sinkId", Query.STREAM_READ, "is for df.write, df.writeStream and write_batch"),
        ("maxMessagesPerTrigger", Query.BATCH_READ, "is for spark.readStream"),
        ("failOnDataLoss", Query.STREAM_WRITE, "is for spark.read and spark.readStream"),
        ("sinkId", Query.SOURCE, "has no effect on spark.read and spark.readStream"),
    ],
)
def test_an_option_for_another_kind_of_query_is_refused(name: str, query: Query, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read_options({**URL, name: "1"}, query)


def test_each_kind_of_query_reads_its_own_options() -> None:
    source = PulsarDataSource({**URL, "topic": "t", "sinkId": "s"})
    with pytest.raises(OptionError, match="sinkId"):
        source.reader(SCHEMA)
    with pytest.raises(OptionError, match="sinkId"):
        source.streamReader(SCHEMA).getDefaultReadLimit()
    for writer in (PulsarDataSource({**URL, "topic": "t", "startingOffsets": "latest"}).streamWriter,):
        with pytest.raises(OptionError, match="startingOffsets"):
            writer(columns(value=StringType()), False)
    with pytest.raises(OptionError, match="endingOffsets"):
        PulsarDataSource({**URL, "topic": "t", "endingOffsets": "latest"}).streamReader(SCHEMA).initialOffset()
    with pytest.raises(OptionError, match="unknown option"):
        PulsarDataSource({**URL, "subscribe": "t"}).schema()


def test_a_stream_with_refused_options_says_so_at_every_call_of_spark_and_can_be_closed() -> None:
    """Were it said by `streamReader`, the clean-up of Spark's worker would fail after it, and hide it."""
    refused = PulsarDataSource({**URL, "topic": "t", "endingOffsets": "latest"}).streamReader(SCHEMA)
    calls: list[Callable[[], Any]] = [
        refused.prepareForTriggerAvailableNow,
        refused.getDefaultReadLimit,
        refused.initialOffset,
        lambda: refused.latestOffset({}, ReadAllAvailable()),
        refused.reportLatestOffset,
        lambda: refused.partitions({}, {}),
        lambda: refused.commit({}),
        lambda: refused.read(Work([])),
    ]
    for call in calls:
        with pytest.raises(OptionError, match="option 'endingOffsets' is for"):
            call()
    with pytest.raises(OptionError, match="endingOffsets"):
        pickle.loads(pickle.dumps(refused)).read(Work([]))  # our own bytes
    refused.stop()


SECRET = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0"


@pytest.mark.parametrize(
    ("options", "method", "data"),
    [
        ({"token": SECRET}, "token", SECRET.encode()),
        ({"pulsar.client.authpluginclassname": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
          "pulsar.client.authparams": f"token:{SECRET}"}, "token", SECRET.encode()),
        ({"pulsar.client.authPluginClassName": "AuthenticationBasic",
          "pulsar.client.authParams": '{"userId": "me", "password": "' + SECRET + '"}'}, "basic", f"me:{SECRET}".encode()),
        ({"tlsCertificateFile": "me.pem", "tlsKeyFile": "me.key"}, "tls", b""),
        ({"pulsar.client.authPluginClassName": "AuthenticationTls",
          "pulsar.client.authParams": "tlsCertFile:me.pem,tlsKeyFile:me.key"}, "tls", b""),
    ],
)  # fmt: skip
def test_credentials_reach_the_client_and_nobody_else(options: dict[str, str], method: str, data: bytes) -> None:
    read = read_options({**URL, **options})
    assert SECRET not in repr(read)
    assert SECRET not in repr(PulsarDataSource({**URL, "topic": "t", **options}).streamReader(SCHEMA))

    async def used() -> Any:
        async with make_client(read) as client:
            return core_of(client).settings.authentication

    authentication = asyncio.run(used())
    assert (authentication.method_name, authentication.data()) == (method, data)


def test_a_token_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"

    async def twice() -> list[Any]:
        async with make_client(read_options({**URL, "tokenFile": str(file)})) as client:
            authentication: Any = core_of(client).settings.authentication
            found = []
            for text in ("one", "two"):
                file.write_text(text + "\n", encoding="utf-8")
                found.append(authentication.data())
            return found

    assert asyncio.run(twice()) == [b"one", b"two"]


def test_an_oauth2_key_file_is_read_with_its_issuer(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"client_id": "me", "client_secret": SECRET}), encoding="utf-8")
    given = {**URL, "oauth2KeyFile": str(key), "oauth2IssuerUrl": "https://issuer.example", "oauth2Audience": "pulsar"}
    given["oauth2Scope"] = "produce consume"

    async def used() -> Any:
        async with make_client(read_options(given)) as client:
            return core_of(client).settings.authentication

    authentication = asyncio.run(used())
    assert isinstance(authentication, OAuth2Authentication)
    assert authentication._form.items() >= {"audience": "pulsar", "scope": "produce consume"}.items()
    assert SECRET not in repr(authentication)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": SECRET, "tokenFile": "f"}, "token and tokenFile all say who this is"),
        ({"tokenFile": "f", "pulsar.client.authPluginClassName": "AuthenticationToken",
          "pulsar.client.authParams": SECRET}, "leave one out"),
        ({"pulsar.client.authPluginClassName": "AuthenticationKerberos", "pulsar.client.authParams": SECRET},
         "AuthenticationToken"),
        ({"pulsar.client.authPluginClassName": "AuthenticationBasic", "pulsar.client.authParams": "{" + SECRET}, "do not fit"),
    ],
)  # fmt: skip
def test_credentials_that_cannot_work_are_refused_and_not_shown(options: dict[str, str], message: str) -> None:
    async def connect() -> None:
        make_client(read_options({**URL, **options}))

    with pytest.raises(OptionError, match=message) as caught:
        asyncio.run(connect())
    assert SECRET not in str(caught.value)


def test_arguments_of_the_client_are_passed_through_by_our_names_and_javas() -> None:
    given = {
        "pulsar.client.connectiontimeoutms": "2500",
        "pulsar.client.keepAliveIntervalSeconds": "7",
        "pulsar.client.listener_name": "outside",
        "pulsar.client.maxLookupRedirects": "3",
        "pulsar.client.tlsHostnameVerificationEnable": "false",
        "tlsValidateHostname": "true",
        "operationTimeoutMs": "4000",
    }

    async def settings() -> Any:
        async with make_client(read_options({**URL, **given})) as client:
            return core_of(client).settings

    found = asyncio.run(settings())
    assert (found.connection_timeout, found.keep_alive_interval, found.listener_name) == (2.5, 7.0, "outside")
    assert (found.max_lookup_redirects, found.operation_timeout, found.tls.validate_hostname) == (3, 4.0, False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pulsar.client.conectionTimeoutMs", "1", "did you mean 'pulsar.client.connectionTimeoutMs'"),
        ("pulsar.client.zzz", "1", "the client knows"),
        ("pulsar.client.connectionTimeoutMs", "soon", "'soon' is not a whole number of milliseconds"),
        ("pulsar.client.keep_alive_interval", "-1", "'-1' is not a number of seconds above 0"),
    ],
)
def test_bad_arguments_of_the_client_are_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read_options({**URL, name: value})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (columns(key=StringType()), "needs a column 'value'"),
        (columns(value=IntegerType()), "column 'value' is int; the sink takes string or binary"),
        (columns(value=StringType(), amount=IntegerType()), "no column 'amount'.*to_json"),
        (columns(value=StringType()), "where to"),
    ],
)
def test_columns_that_the_sink_cannot_take_are_refused(schema: StructType, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PulsarDataSource(dict(URL)).streamWriter(schema, False)


def test_a_topic_may_come_from_the_option_or_the_column() -> None:
    assert PulsarDataSource({**URL, "topic": "t"}).streamWriter(columns(value=StringType()), True)
    assert PulsarDataSource(dict(URL)).writer(columns(value=StringType(), topic=StringType()), False)


def test_overwriting_a_topic_is_refused() -> None:
    with pytest.raises(OptionError, match="append"):
        PulsarDataSource({**URL, "topic": "t"}).writer(columns(value=StringType()), True)


def test_a_source_needs_a_topic_and_keeps_its_columns() -> None:
    with pytest.raises(OptionError, match="which topic"):
        PulsarDataSource(dict(URL)).reader(SCHEMA)
    with pytest.raises(OptionError, match="no column 'price'; the columns are "):
        PulsarDataSource({**URL, "topic": "t"}).streamReader(columns(price=StringType())).prepareForTriggerAvailableNow()
    assert PulsarDataSource({**URL, "topic": "t"}).schema() == SCHEMA


@pytest.mark.parametrize("text", ["yesterday", "[]", "3", '{"t": 5}', '{"t": [1]}', '{"t": ["a", 1]}', '{"v": 2, "p": {}}'])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_user_offset(text)


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(OptionError, match="not an offset of this source"):
        from_offset({"topic": {"0": 17}})


def test_a_sink_is_known_by_its_query_and_name_or_by_its_option() -> None:
    assert sink_id(read_options(URL), "query") == "query/0"
    assert sink_id(read_options({**URL, "sinkName": "b"}), "query") == "query/b"
    assert sink_id(read_options({**URL, "sinkId": "mine"}), "query") == "mine"
    assert control_topic_of(read_options(URL), "query/0") == "persistent://public/default/__spark_sink-query-0"


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    import pyspark_pulsar_txn  # what Spark does

    assert pyspark_pulsar_txn.DefaultSource.name() == "pulsar"
    assert PulsarTxnDataSource.name() == "pulsar_txn"


def test_every_option_stands_on_the_page_with_its_default() -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    rows = re.findall(r"^\| `([\w.]+)` \| (?:`([^`]*)`)? ?\| ", page.read_text(encoding="utf-8"), re.MULTILINE)
    defaults = {}
    for name, field in TABLE.items():
        value = field.default
        defaults[name] = str(value).lower() if isinstance(value, bool) else "" if value in (None, "", ()) else str(value)
    defaults["compression"] = "none"
    assert dict(rows) == defaults


@pytest.mark.parametrize(
    ("absent", "version", "expected"),
    [
        ("pyspark.sql.streaming.datasource", "4.1.2", "needs PySpark 4.2 or newer, and 4.1.2 is installed"),
        ("pyarrow", "4.3.0", "needs pyarrow: pip install pyarrow"),
    ],
)
def test_a_pyspark_that_is_too_old_and_what_is_missing_are_named(absent: str, version: str, expected: str) -> None:
    program = f"""
import sys, pyspark.sql.datasource
sys.modules[{absent!r}] = None
pyspark.__version__ = {version!r}
import pyspark_pulsar_txn
try:
    pyspark_pulsar_txn.DefaultSource({{}})
except ImportError as error:
    print(error)
try:
    import pulsar_txn.pipeline.spark
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.count(expected) == 2
