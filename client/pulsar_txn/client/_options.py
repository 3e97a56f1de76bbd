"""Options that a program gives by name: which ones a call has, and what was probably meant by one that it lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import attrs

from pulsar_txn.client.errors import InvalidConfiguration

T = TypeVar("T")

_LEAVE_OUT: Final = "leave it out"

OFFICIAL: Final[Mapping[str, str]] = {
    # Client
    "operation_timeout_seconds": "write operation_timeout=, in seconds",
    "connection_timeout_ms": "write connection_timeout=, in seconds",
    "io_threads": f"{_LEAVE_OUT}: one event loop does the work",
    "message_listener_threads": f"{_LEAVE_OUT}: no listeners are called, your program receives",
    "concurrent_lookup_requests": f"{_LEAVE_OUT}: the broker's limit is respected",
    "log_conf_file_path": 'configure the logger "pulsar_txn" of Python\'s logging',
    "logger": 'configure the logger "pulsar_txn" of Python\'s logging',
    "stats_interval_in_seconds": "call client.stats() when you want numbers",
    "use_tls": "write a service URL of pulsar+ssl://",
    "tls_trust_certs_file_path": "write tls_trust_certs_file=",
    "tls_certificate_file_path": "write tls_certificate_file=",
    "tls_private_key_file_path": "write tls_key_file=",
    # producers
    "send_timeout_millis": "write send_timeout=, in seconds",
    "compression_type": "write compression=",
    "max_pending_messages_across_partitions": "write max_pending_messages=, which counts all partitions together",
    "block_if_queue_full": "write block_if_full=",
    "batching_enabled": "write batching=",
    "batching_max_allowed_size_in_bytes": "write batching_max_bytes=",
    "batching_max_publish_delay_ms": "write batching_max_delay=, in seconds",
    "chunking_enabled": "write chunking=",
    "message_routing_mode": "write routing=",
    "message_router": "write routing=, a function (key, payload) -> partition",
    "lazy_start_partitioned_producers": f"{_LEAVE_OUT}: all partitions are connected at once",
    "encryption_key": "write encryption_keys=",
    "crypto_key_reader": "write crypto_keys=, for instance PemKeys",
    # consumers and readers
    "message_listener": "call receive() in a loop, or use client.pipeline()",
    "reader_listener": "call read_next() in a loop",
    "max_total_receiver_queue_size_across_partitions": "write receiver_queue_size=, which is that of each partition",
    "unacked_messages_timeout_ms": "write ack_timeout=, in seconds",
    "broker_consumer_stats_cache_time_ms": f"{_LEAVE_OUT}: nothing is cached",
    "negative_ack_redelivery_delay_ms": "write negative_ack_delay=, in seconds",
    "is_read_compacted": "write read_compacted=",
    "is_pattern_topic": "give a compiled pattern as topic: re.compile(…)",
    "pattern_auto_discovery_period": "write pattern_discovery_period=, in seconds",
    "replicate_subscription_state_enabled": "write replicate_subscription_state=",
    "max_pending_chunked_message": "write max_pending_chunked_messages=",
    "auto_ack_oldest_chunked_message_on_queue_full": "write auto_ack_oldest_chunked_message=",
    "batch_receive_policy": "call receive_many(max_messages, max_wait=…)",
    "batch_index_ack_enabled": f"{_LEAVE_OUT}: single messages of a batch are always acknowledged",
    "subscription_role_prefix": f"{_LEAVE_OUT}: a reader names its subscription itself",
    "subscription_name": f"{_LEAVE_OUT}: a reader names its subscription itself",
}
"""Names of the official Python client, and what a program writes for them here."""


def unknown_option(call: str, name: str, known: Iterable[str]) -> InvalidConfiguration:
    """The error for an option that a call lacks; it names what was probably meant."""
    message = f"{call}() has no option {name!r}"
    if name in OFFICIAL:
        return InvalidConfiguration(f"{message}, a name of the official client", hint=OFFICIAL[name])
    import difflib  # its import is paid by the mistake only

    close = difflib.get_close_matches(name, known, n=1)
    return InvalidConfiguration(message, hint=f"did you mean {close[0]!r}?" if close else "see help() for the options it has")


def check_known(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidConfiguration for the first option that the call lacks."""
    names = set(known)
    for name in given:
        if name not in names:
            raise unknown_option(call, name, sorted(names))


def options_of(kind: type[T], given: Mapping[str, Any], call: str) -> T:
    """The options of one call as a value of an attrs class. InvalidConfiguration says what is wrong with one of them."""
    check_known(call, given, (field.name for field in attrs.fields(kind)))  # type: ignore[arg-type]  # an attrs class
    try:
        return kind(**given)
    except InvalidConfiguration:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(str(error)) from None
