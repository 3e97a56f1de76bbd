"""The options of `format("pulsar")`: one table, read from what Spark hands over (names in any case, values as text).

To add an option, add a field to `Options` with its name, its reader, its default and the kinds of query that it is for,
and a row to the table in `docs/spark.md`.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.spark.client_options import PREFIX as CLIENT_PREFIX
from pulsar_txn.pipeline.spark.client_options import read_client_option
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.foreign_options import answer_to
from pulsar_txn.pipeline.spark.option_values import (
    EXPECTED,
    compression,
    delivery,
    flag,
    key_value_encoding,
    mode,
    names,
    part_schema,
    pattern,
    positive,
    schema,
    schema_type,
    secret,
    text,
    times,
    whole,
)


class Query(enum.Flag):
    """The kinds of query that an option is for."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    FOREACH_BATCH = enum.auto()
    SOURCE = BATCH_READ | STREAM_READ
    STAGES = BATCH_WRITE | STREAM_WRITE
    NUMBERED = STREAM_WRITE | FOREACH_BATCH
    SINK = STAGES | FOREACH_BATCH
    ANY = SOURCE | SINK


_CALLED: Final = {
    Query.BATCH_READ: "spark.read",
    Query.STREAM_READ: "spark.readStream",
    Query.SOURCE: "spark.read and spark.readStream",
    Query.BATCH_WRITE: "df.write",
    Query.STREAM_WRITE: "df.writeStream",
    Query.FOREACH_BATCH: "write_batch",
    Query.STAGES: "df.write and df.writeStream",
    Query.NUMBERED: "df.writeStream and write_batch",
    Query.SINK: "df.write, df.writeStream and write_batch",
}


def _option(name: str, read: Callable[[str], Any], default: Any, query: Query = Query.ANY) -> Any:
    return attrs.field(default=default, metadata={"name": name, "read": read, "query": query})


@attrs.frozen(kw_only=True)
class Options:
    """All options, for source and sink; times in milliseconds, sizes in bytes. The table in `docs/spark.md` explains them."""

    service_url: str = _option("service.url", text, "")
    topics: tuple[str, ...] = _option("topic", names, ())
    operation_timeout_ms: int = _option("operationTimeoutMs", positive, 30_000)
    # who we are, and whom we trust
    token: Secret | None = _option("token", secret, None)  # noqa: RUF009 - a field of attrs
    token_file: str | None = _option("tokenFile", text, None)
    tls_trust_certs_file: str | None = _option("tlsTrustCertsFile", text, None)
    tls_certificate_file: str | None = _option("tlsCertificateFile", text, None)
    tls_key_file: str | None = _option("tlsKeyFile", text, None)
    tls_validate_hostname: bool = _option("tlsValidateHostname", flag, True)
    tls_allow_insecure_connection: bool = _option("tlsAllowInsecureConnection", flag, False)
    oauth2_key_file: Secret | None = _option("oauth2KeyFile", secret, None)  # noqa: RUF009 - likewise
    oauth2_issuer_url: str | None = _option("oauth2IssuerUrl", text, None)
    oauth2_audience: str | None = _option("oauth2Audience", text, None)
    oauth2_scope: str | None = _option("oauth2Scope", text, None)
    # source
    topics_pattern: str | None = _option("topicsPattern", pattern, None, Query.SOURCE)
    starting_timestamp: int | tuple[tuple[str, int], ...] | None = _option("startingTimestamp", times, None, Query.SOURCE)
    ending_timestamp: int | tuple[tuple[str, int], ...] | None = _option("endingTimestamp", times, None, Query.BATCH_READ)
    mode: str = _option("mode", mode, "FAILFAST", Query.SOURCE)
    corrupt_column: str | None = _option("columnNameOfCorruptRecord", text, None, Query.SOURCE)
    starting_offsets: str | None = _option("startingOffsets", text, None, Query.SOURCE)
    ending_offsets: str = _option("endingOffsets", text, "latest", Query.BATCH_READ)
    max_messages_per_trigger: int | None = _option("maxMessagesPerTrigger", positive, None, Query.STREAM_READ)
    subscription_name: str | None = _option("subscriptionName", text, None, Query.STREAM_READ)
    fail_on_data_loss: bool = _option("failOnDataLoss", flag, True, Query.SOURCE)
    fail_after_ms: int = _option("failAfterMs", positive, 300_000, Query.SOURCE)
    receiver_queue_bytes: int = _option("receiverQueueBytes", positive, 16 * 1024 * 1024, Query.SOURCE)
    wait_for_topic: bool = _option("waitForTopic", flag, False, Query.SOURCE)
    max_bytes_per_trigger: int | None = _option("maxBytesPerTrigger", positive, None, Query.STREAM_READ)
    min_partitions: int | None = _option("minPartitions", positive, None, Query.SOURCE)
    max_partitions: int | None = _option("maxPartitions", positive, None, Query.SOURCE)
    poll_timeout_ms: int = _option("pollTimeoutMs", positive, 30_000, Query.SOURCE)
    warn_open_transaction_after_ms: int = _option("warnOpenTransactionAfterMs", positive, 60_000, Query.STREAM_READ)
    # sink
    sink_id: str | None = _option("sinkId", text, None, Query.SINK)
    sink_name: str | None = _option("sinkName", text, None, Query.SINK)
    control_topic: str | None = _option("controlTopic", text, None, Query.SINK)
    delivery: str = _option("delivery", delivery, "staged", Query.STAGES)
    transaction_timeout_ms: int = _option("transactionTimeoutMs", positive, 600_000, Query.SINK)
    commit_timeout_ms: int = _option("commitTimeoutMs", positive, 120_000, Query.SINK)
    staging_topic: str | None = _option("stagingTopic", text, None, Query.STAGES)
    inline_max_bytes: int = _option("inlineMaxBytes", positive, 256 * 1024, Query.STAGES)
    batching_max_bytes: int = _option("batchingMaxBytes", positive, 128 * 1024, Query.SINK)
    batching_max_messages: int = _option("batchingMaxMessages", positive, 1000, Query.SINK)
    compression: int = _option("compression", compression, 0, Query.SINK)
    batch_id_property: str = _option("batchIdProperty", text, "__batch_id", Query.SINK)
    adopt_checkpoint: bool = _option("adoptCheckpoint", flag, False, Query.NUMBERED)
    allow_self_write: bool = _option("allowSelfWrite", flag, False, Query.NUMBERED)
    ack_subscription: str | None = _option("ackSubscription", text, None, Query.NUMBERED)
    txn_app_id: str | None = _option("txnAppId", text, None, Query.BATCH_WRITE)
    txn_version: int | None = _option("txnVersion", whole, None, Query.BATCH_WRITE)
    # both
    schema: str = _option("schema", schema, "bytes")
    schema_type: str | None = _option("schemaType", schema_type, None)
    key_schema: str | None = _option("keySchema", part_schema, None)
    key_value_encoding: str = _option("keyValueEncoding", key_value_encoding, "INLINE")
    admin_url: str | None = _option("admin.url", text, None)

    client_options: tuple[tuple[str, Any], ...] = ()
    """The arguments of the client that `pulsar.client.…` sets, in the order of their names."""


TABLE: Final = {field.metadata["name"]: field for field in attrs.fields(Options) if field.metadata}
"""Every option by its name."""

_ALIASES: Final = {"serviceurl": "service.url", "topics": "topic", "adminurl": "admin.url"}
_BY_NAME: Final = {name.lower(): field for name, field in TABLE.items()}
_OF_SPARK: Final = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Spark's own options, which it hands over with ours."""


def read_options(given: Mapping[str, str], query: Query = Query.ANY) -> Options:
    """Spark's options, for a kind of query (`ANY`: not known yet).

    OptionError names what is unknown, missing, for another kind of query, or cannot be read.
    """
    values: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in given.items():
        key = _ALIASES.get(name.lower(), name.lower())
        if key.startswith(CLIENT_PREFIX):
            client |= read_client_option(name, value)
        elif (field := _BY_NAME.get(key)) is not None:
            _check_query(field, query)
            values[field.name] = _read(field, value)
        elif key not in _OF_SPARK:
            raise OptionError(_unknown(name))
    if not values.get("service_url"):
        raise OptionError(
            'the option "service.url" is missing, for instance .option("service.url", "pulsar://localhost:6650"); '
            "with SQL use CREATE TEMPORARY VIEW … USING pulsar OPTIONS (…), since tables do not keep options"
        )
    return Options(**values, client_options=tuple(sorted(client.items())))


def _check_query(field: attrs.Attribute[Any], query: Query) -> None:
    allowed = field.metadata["query"]
    if not allowed & query:
        asked = _CALLED.get(query, "this query")
        raise OptionError(
            f"option {field.metadata['name']!r} is for {_CALLED[allowed]}, and has no effect on {asked}: leave it out"
        )


def _read(field: attrs.Attribute[Any], value: str) -> Any:
    read = field.metadata["read"]
    try:
        return read(value)
    except (ValueError, KeyError):
        shown = repr(value) if field.repr else "the value"
        raise OptionError(f"option {field.metadata['name']}: {shown} is not {EXPECTED[read]}") from None


def _unknown(name: str) -> str:
    """An error's text for a name that is not in the table: nothing that somebody types is ignored."""
    if (answer := answer_to(name)) is not None:
        return f"unknown option {name!r}: {answer}"
    close = difflib.get_close_matches(name.lower(), [*_BY_NAME, *_ALIASES], n=1, cutoff=0.6)
    if not close:
        return f"unknown option {name!r}; the options are {', '.join(sorted(TABLE))}, and pulsar.client.…"
    known = _BY_NAME[_ALIASES.get(close[0], close[0])].metadata["name"]
    return f"unknown option {name!r}; did you mean {known!r}?"
