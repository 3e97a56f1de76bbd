"""Options and columns: what is wrong is said before anything runs, with what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from pulsar_txn.pipeline.spark import OptionError, PulsarDataSource, PulsarTxnDataSource
from pulsar_txn.pipeline.spark.options import Options, read_options
from pulsar_txn.pipeline.spark.sink.writer import default_control_topic, sink_id
from pulsar_txn.pipeline.spark.source.columns import SCHEMA
from pulsar_txn.pipeline.spark.source.offsets import from_offset, parse_user_offset

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


def test_what_spark_adds_and_what_resembles_nothing_is_let_through() -> None:
    assert read_options({**URL, "path": "x", "checkpointLocation": "y", "completely": "else"}).service_url


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
    with pytest.raises(OptionError, match="leave "):
        PulsarDataSource({**URL, "topic": "t"}).streamReader(columns(value=StringType()))
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
    assert default_control_topic("query/0") == "persistent://public/default/__spark_sink-query-0"


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    import pyspark_pulsar_txn  # what Spark does

    assert pyspark_pulsar_txn.DefaultSource.name() == "pulsar"
    assert PulsarTxnDataSource.name() == "pulsar_txn"


def test_every_option_stands_on_the_page_with_its_default() -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    rows = re.findall(r"^\| `([\w.]+)` \| (?:`([^`]*)`)? ?\| ", page.read_text(encoding="utf-8"), re.MULTILINE)
    defaults = {}
    for field in attrs.fields(Options):
        value = field.default
        text = str(value).lower() if isinstance(value, bool) else "" if value in (None, "", ()) else str(value)
        defaults[field.metadata["name"]] = text
    defaults["compression"] = "none"
    assert dict(rows) == defaults
