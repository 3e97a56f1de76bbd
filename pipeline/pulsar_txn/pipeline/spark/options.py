"""Options of `format("pulsar")`: one table, read from what Spark hands over (names in any case, values as text).

Each reader of a value names what was expected in its error. `pulsar.client.…` are arguments of the client, under our names or
those of Pulsar's Java client. `answer_to` names the option that replaces one of Spark's Kafka source or of StreamNative's
connector.

To add an option, add a field to `Options` with its name, its reader, its default and the kinds of query that it is for,
and a row to the table in `docs/spark.md`.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from pulsar_txn.client import TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication, BasicAuthentication, OAuth2Authentication
from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.spark.errors import OptionError

_TOPIC = 'use "topic" (one or several, with commas between)'
_SECRETS = 'use "tokenFile", "tlsTrustCertsFile", "tlsCertificateFile" and "tlsKeyFile", or "oauth2KeyFile"'

_ANSWERS: Final = {
    # Spark's Kafka source and sink
    "subscribe": _TOPIC,
    "assign": 'use "topic" with full names of partitions, as in "persistent://public/default/t-partition-0"',
    "subscribepattern": 'use "topicsPattern"',
    "startingoffsetsbytimestamp": 'use "startingTimestamp"; by topic partition it is a JSON object of milliseconds',
    "endingoffsetsbytimestamp": 'use "endingTimestamp"; by topic partition it is a JSON object of milliseconds',
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last message means the end of the topic",
    "maxoffsetspertrigger": 'use "maxMessagesPerTrigger"',
    "minoffsetspertrigger": "there is no lower bound: use a processing-time trigger to collect more per micro-batch",
    "maxtriggerdelay": "there is no lower bound: use a processing-time trigger to collect more per micro-batch",
    "maxrecordsperpartition": 'use "minPartitions"',
    "groupidprefix": 'use "subscriptionName"; without it the source needs no subscription',
    "includeheaders": 'leave it out: the column "properties" is always there',
    "kafkaconsumer.polltimeoutms": 'use "pollTimeoutMs"',
    "fetchoffset.numretries": 'use "failAfterMs"',
    "fetchoffset.retryintervalms": 'use "failAfterMs"',
    # StreamNative's connector
    "predefinedsubscription": 'use "subscriptionName"',
    "subscriptionprefix": 'use "subscriptionName"',
    "startingtime": 'use "startingTimestamp"',
    "endingtime": 'use "endingTimestamp"',
    "allowdifferenttopicschemas": "leave it out: every message is read as bytes",
    "waitingfornonexistedtopic": 'use "waitForTopic"',
    "authpluginclassname": f'it is "pulsar.client.authPluginClassName"; or {_SECRETS}',
    "authparams": f'it is "pulsar.client.authParams"; or {_SECRETS}',
    "usetls": 'use a service.url with "pulsar+ssl://"',
}

_PREFIXES: Final = {
    "kafka.bootstrap.servers": 'use "service.url", as in "pulsar://localhost:6650"',
    "kafka.group.id": 'use "subscriptionName"; without it the source needs no subscription',
    "kafka.compression.type": 'use "compression"',
    "kafka.s": _SECRETS,
    "kafka.": "this is a source for Pulsar; arguments of its client are pulsar.client.…",
    "pulsar.reader.": 'only pulsar.client.… is passed through; see "receiverQueueBytes" and "pollTimeoutMs"',
    "pulsar.producer.": 'only pulsar.client.… is passed through; see "compression" and "batchingMaxBytes"',
    "pulsar.consumer.": 'only pulsar.client.… is passed through; see "subscriptionName"',
    "pulsar.admin.": "leave it out: only the binary protocol is used",
}


def answer_to(name: str) -> str | None:
    """Advice for an option of another source; None for a name that no other source has."""
    key = name.lower()
    found = _ANSWERS.get(key)
    if found is None:
        found = next((answer for prefix, answer in _PREFIXES.items() if key.startswith(prefix)), None)
    return found


DELIVERIES: Final = ("staged", "grouped", "auto")
MODES: Final = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
PRIMITIVE_SCHEMAS: Final = {
    "string": 1,
    "boolean": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "int64": 9,
    "float": 10,
    "double": 11,
    "date": 12,
    "time": 13,
    "timestamp": 14,
    "instant": 16,
    "local_date": 17,
    "local_time": 18,
    "local_date_time": 19,
}
"""Pulsar's names of the kinds without a definition, and their numbers."""
SCHEMAS: Final = ("bytes", "topic", "json", "avro", *PRIMITIVE_SCHEMAS)
_SCHEMA_ALIASES: Final = {"binary": "bytes", "bool": "boolean", "localdate": "local_date", "localtime": "local_time"} | {
    "localdatetime": "local_date_time"
}
COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def secret(value: str) -> Secret:
    """Any text, which is shown to nobody."""
    return Secret(value)


def text(value: str) -> str:
    """Any text."""
    return value


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def flag(value: str) -> bool:
    """`true` or `false`, in any case."""
    return {"true": True, "false": False}[value.strip().lower()]


def positive(value: str) -> int:
    """A whole number above 0."""
    number = int(value)
    if number <= 0:
        raise ValueError(value)
    return number


END_OF_TIME_MS: Final = 253_402_300_800_000
"""The year 10000, in milliseconds: the calendars of Spark's text forms and of Python end before it."""
BEGIN_OF_TIME_MS: Final = -62_135_596_800_000
"""The year 1, in milliseconds: Python's calendar begins with it."""


def whole(value: str) -> int:
    """A whole number, 0 or more."""
    number = int(value)
    if number < 0:
        raise ValueError(value)
    return number


def seconds(value: str) -> float:
    """A number of seconds above 0."""
    number = float(value)
    if not number > 0:
        raise ValueError(value)
    return number


def milliseconds(value: str) -> float:
    """Milliseconds, as seconds."""
    return positive(value) / 1000


def nanoseconds(value: str) -> float:
    """Nanoseconds, as seconds."""
    return positive(value) / 1e9


def compression(value: str) -> int:
    """The name of a compression, as Pulsar's number."""
    return COMPRESSIONS[value.strip().lower()]


def delivery(value: str) -> str:
    """Parse the delivery of a sink: the way of its rows to their topics."""
    chosen = value.strip().lower()
    if chosen not in DELIVERIES:
        raise ValueError(value)
    return chosen


def pattern(value: str) -> str:
    """A regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from error
    return value


def schema(value: str) -> str:
    """The source of the type of the column `value`: `bytes`, `topic`, a kind of schema, or the text of a definition."""
    short = value.strip()
    if short.startswith("{"):
        json.loads(short)
        return short
    short = _SCHEMA_ALIASES.get(short.lower(), short.lower())
    if short not in SCHEMAS:
        raise ValueError(value)
    return short


def part_schema(value: str) -> str:
    """The same, without `topic`."""
    found = schema(value)
    if found == "topic":
        raise ValueError(value)
    return found


def schema_type(value: str) -> str:
    """Parse the encoding of a definition's values."""
    return {"JSON": "json", "AVRO": "avro"}[value.strip().upper()]


def key_value_encoding(value: str) -> str:
    """Parse Pulsar's encoding of key-value pairs: INLINE or SEPARATED."""
    return {"INLINE": "INLINE", "SEPARATED": "SEPARATED"}[value.strip().upper()]


def mode(value: str) -> str:
    """Parse the mode for a value that does not fit, as Spark's `from_json` calls it."""
    return {each: each for each in MODES}[value.strip().upper()]


def times(value: str) -> int | tuple[tuple[str, int], ...]:
    """Milliseconds since the epoch, or a JSON object of them by topic partition."""
    if not value.lstrip().startswith("{"):
        return _time(whole(value))
    return tuple(sorted((topic, _time(time_ms)) for topic, time_ms in json.loads(value).items()))


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value < END_OF_TIME_MS:
        raise ValueError(value)
    return value


EXPECTED: Final[dict[Callable[[str], Any], str]] = {
    secret: "a text",
    text: "a text",
    names: "names with commas between them",
    flag: "true or false",
    positive: "a whole number above 0",
    whole: "a whole number, 0 or more",
    seconds: "a number of seconds above 0",
    milliseconds: "a whole number of milliseconds above 0",
    nanoseconds: "a whole number of nanoseconds above 0",
    schema: f"one of {', '.join(SCHEMAS)}, or an Avro definition in JSON",
    part_schema: f"one of {', '.join(each for each in SCHEMAS if each != 'topic')}, or an Avro definition in JSON",
    schema_type: "JSON or AVRO",
    key_value_encoding: "INLINE or SEPARATED",
    mode: f"one of {', '.join(MODES)}",
    pattern: "a regular expression",
    times: "a time from 1970 to 9999: milliseconds (not micro- or nanoseconds) since the epoch, or a JSON object of them by "
    "topic partition",
    compression: f"one of {', '.join(COMPRESSIONS)}",
    delivery: f"one of {', '.join(DELIVERIES)}",
}
"""Text of an error after "is not"."""

CLIENT_PREFIX: Final = "pulsar.client."

AUTH_PLUGIN: Final = "auth_plugin"
AUTH_PARAMS: Final = "auth_params"
"""Not arguments of the client: together they make its `authentication`."""

_ARGUMENTS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "operation_timeout": ("operation_timeout", seconds),
    "connection_timeout": ("connection_timeout", seconds),
    "keep_alive_interval": ("keep_alive_interval", seconds),
    "initial_backoff": ("initial_backoff", seconds),
    "max_backoff": ("max_backoff", seconds),
    "listener_name": ("listener_name", text),
    "max_lookup_redirects": ("max_lookup_redirects", positive),
    "memory_limit": ("memory_limit", whole),
    "description": ("description", text),
    "sni_proxy_url": ("sni_proxy_url", text),
    "coordinator": ("coordinator", text),
    "cluster": ("cluster", text),
    "tls_trust_certs_file": ("tls_trust_certs_file", text),
    "tls_certificate_file": ("tls_certificate_file", text),
    "tls_key_file": ("tls_key_file", text),
    "tls_validate_hostname": ("tls_validate_hostname", flag),
    "tls_allow_insecure_connection": ("tls_allow_insecure_connection", flag),
    # as Pulsar's Java client calls them
    "operationTimeoutMs": ("operation_timeout", milliseconds),
    "connectionTimeoutMs": ("connection_timeout", milliseconds),
    "keepAliveIntervalSeconds": ("keep_alive_interval", seconds),
    "initialBackoffIntervalNanos": ("initial_backoff", nanoseconds),
    "maxBackoffIntervalNanos": ("max_backoff", nanoseconds),
    "memoryLimitBytes": ("memory_limit", whole),
    "tlsTrustCertsFilePath": ("tls_trust_certs_file", text),
    "tlsCertificateFilePath": ("tls_certificate_file", text),
    "tlsKeyFilePath": ("tls_key_file", text),
    "tlsHostnameVerificationEnable": ("tls_validate_hostname", flag),
    "authPluginClassName": (AUTH_PLUGIN, text),
    "authParams": (AUTH_PARAMS, secret),
}
"""Name after the prefix -> the client's argument, and how its text is read."""


def _key(name: str) -> str:
    """Spark hands names over in lower case, so case and underscores cannot tell two of them apart."""
    return name.replace("_", "").lower()


_BY_KEY: Final = {_key(name): found for name, found in _ARGUMENTS.items()}
_NAMES: Final = {_key(name): name for name in _ARGUMENTS}


def read_client_option(name: str, value: str) -> dict[str, Any]:
    """The argument that an option `pulsar.client.…` sets. OptionError for one that the client does not have."""
    key = _key(name[len(CLIENT_PREFIX) :])
    found = _BY_KEY.get(key)
    if found is None:
        close = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.6)
        advice = (
            f"did you mean {CLIENT_PREFIX + _NAMES[close[0]]!r}?"
            if close
            else f"the client knows {', '.join(sorted(_ARGUMENTS))}"
        )
        raise OptionError(f"unknown option {name!r}; {advice}")
    argument, read = found
    try:
        return {argument: read(value)}
    except (ValueError, KeyError):
        raise OptionError(f"option {name}: {value!r} is not {EXPECTED[read]}") from None


def authentication_of(plugin: str, secret: Secret) -> Authentication:
    """Authentication by Pulsar's `authPluginClassName` and `authParams`. OptionError."""
    kind = plugin.rpartition(".")[2].removeprefix("Authentication").lower()
    make = _PLUGINS.get(kind)
    if make is None:
        raise OptionError(
            "pulsar.client.authPluginClassName is not known; known are AuthenticationToken, AuthenticationTls, "
            "AuthenticationBasic and AuthenticationOAuth2; credentials belong into pulsar.client.authParams"
        )
    try:
        return make(secret.reveal())
    except (ValueError, KeyError):
        raise OptionError(f"pulsar.client.authParams do not fit {plugin}: see Pulsar's documentation of that plugin") from None


def _token(params: str) -> Authentication:
    if params.startswith("file:"):
        return TokenAuthentication.from_file(params.removeprefix("file://").removeprefix("file:"))
    return TokenAuthentication(params.removeprefix("token:"))


def _tls(params: str) -> Authentication:
    files = _pairs(params)
    return TlsAuthentication(files["tlsCertFile"], files["tlsKeyFile"])


def _basic(params: str) -> Authentication:
    if params.lstrip().startswith("{"):
        given = json.loads(params)
        return BasicAuthentication(given["userId"], given["password"])
    user, colon, password = params.partition(":")
    if not colon:
        raise ValueError
    return BasicAuthentication(user, password)


def _oauth2(params: str) -> Authentication:
    given = json.loads(params)
    return OAuth2Authentication.from_key_file(
        given["privateKey"], issuer_url=given.get("issuerUrl", ""), audience=given.get("audience"), scope=given.get("scope")
    )


def _pairs(params: str) -> Mapping[str, str]:
    """`name:value,name:value`, or a JSON object."""
    if params.lstrip().startswith("{"):
        return dict(json.loads(params))
    return {name.strip(): value.strip() for name, _, value in (pair.partition(":") for pair in params.split(","))}


_PLUGINS: Final[dict[str, Callable[[str], Authentication]]] = {
    "token": _token,
    "tls": _tls,
    "basic": _basic,
    "oauth2": _oauth2,
}


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
    staging_topic: str | None = _option("stagingTopic", text, None, Query.SINK)
    inline_max_bytes: int = _option("inlineMaxBytes", positive, 256 * 1024, Query.SINK)
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
