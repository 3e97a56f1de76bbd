"""Official arguments as the options of our client; what is not here is refused, what is dead is warned of."""

from __future__ import annotations

import re
from typing import Any

from pulsar_txn import client as ours
from pulsar_txn.client import RoutingMode
from pulsar_txn.client.encryption import CryptoFailureAction, PemKeys
from pulsar_txn.client.inside import parse_service_url
from pulsar_txn.client.options import AutoClusterFailover as OurFailover
from pulsar_txn.client.options import HashingScheme
from pulsar_txn.compat._arguments import check, check_optional, dead
from pulsar_txn.compat.enums import (
    OUR_BATCHING,
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_txn.compat.exceptions import BY_NAME, not_supported
from pulsar_txn.compat.messages import MessageId
from pulsar_txn.compat.policies import (
    Authentication,
    AutoClusterFailover,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    ServiceInfoProvider,
)
from pulsar_txn.compat.schema import Schema

_SPREAD = "the bound of one consumer or producer holds for all its partitions together"


def client_options(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of our client of what `Client` was given."""
    service_url, authentication = given["service_url"], given["authentication"]
    authorities = given["tls_trust_certs_file_path"]
    if isinstance(service_url, ServiceInfoProvider):
        raise not_supported("ServiceInfoProvider", "give the service URL, or an AutoClusterFailover")
    check((str, AutoClusterFailover), service_url, "service_url")
    check_optional(Authentication, authentication, "authentication")
    if isinstance(service_url, AutoClusterFailover):
        if authentication is not None or authorities is not None:
            raise ValueError(
                "with an AutoClusterFailover authentication and tls_trust_certs_file_path belong to its ServiceInfo"
            )
        primary = service_url.primary
        authentication, authorities = primary.authentication, primary.tls_trust_certs_file_path
    check((int, float), given["operation_timeout_seconds"], "operation_timeout_seconds")
    check(int, given["connection_timeout_ms"], "connection_timeout_ms")
    check(int, given["message_listener_threads"], "message_listener_threads")
    check(bool, given["tls_allow_insecure_connection"], "tls_allow_insecure_connection")
    check(bool, given["tls_validate_hostname"], "tls_validate_hostname")
    check_optional(str, given["listener_name"], "listener_name")
    dead("io_threads", given["io_threads"], 1, "one event loop does the work")
    dead("concurrent_lookup_requests", given["concurrent_lookup_requests"], 50000, "the broker's limit is respected")
    dead("log_conf_file_path", given["log_conf_file_path"], None, "configure Python's logging")
    dead("stats_interval_in_seconds", given["stats_interval_in_seconds"], 600, "nothing is logged by itself")
    dead("use_tls", given["use_tls"], False, "the scheme of the service URL decides")
    return {
        "service_url": _where(service_url),
        "authentication": None if authentication is None else authentication.native(),
        "operation_timeout": given["operation_timeout_seconds"],
        "connection_timeout": given["connection_timeout_ms"] / 1000,
        "listener_name": given["listener_name"] or None,
        "tls_trust_certs_file": authorities,
        "tls_certificate_file": given["tls_certificate_file_path"],
        "tls_key_file": given["tls_private_key_file_path"],
        "tls_validate_hostname": given["tls_validate_hostname"],
        "tls_allow_insecure_connection": given["tls_allow_insecure_connection"],
    }


def _where(service_url: str | AutoClusterFailover) -> str | OurFailover:
    """Translate to arguments of our client. ValueError for a bad URL, as the official client."""
    infos = [service_url.primary, *service_url.secondary] if isinstance(service_url, AutoClusterFailover) else []
    for url in [info.service_url for info in infos] or [str(service_url)]:
        if url.startswith(("http://", "https://")):
            raise not_supported("looking topics up over HTTP", "give the binary port: pulsar://host:6650")
        try:
            parse_service_url(url)
        except ValueError as error:
            raise ValueError(str(error)) from error
    return service_url.policy() if isinstance(service_url, AutoClusterFailover) else service_url


def producer_options(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of ProducerOptions of what `create_producer` was given."""
    check(str, given["topic"], "topic")
    check(Schema, given["schema"], "schema")
    for name in ("send_timeout_millis", "max_pending_messages", "batching_max_messages", "batching_max_allowed_size_in_bytes"):
        check(int, given[name], name)
    for name in ("block_if_queue_full", "batching_enabled", "chunking_enabled"):
        check(bool, given[name], name)
    check_optional(str, given["producer_name"], "producer_name")
    check_optional(int, given["initial_sequence_id"], "initial_sequence_id")
    check(int, given["batching_max_publish_delay_ms"], "batching_max_publish_delay_ms")
    check_optional(dict, given["properties"], "properties")
    check(CompressionType, given["compression_type"], "compression_type")
    check(BatchingType, given["batching_type"], "batching_type")
    check(ProducerAccessMode, given["access_mode"], "access_mode")
    dead("max_pending_messages_across_partitions", given["max_pending_messages_across_partitions"], 50000, _SPREAD)
    dead("lazy_start_partitioned_producers", given["lazy_start_partitioned_producers"], False, "all partitions are connected")
    initial = given["initial_sequence_id"]  # the last one that was used
    options: dict[str, Any] = {
        "producer_name": given["producer_name"] or None,
        "initial_sequence_id": None if initial is None else initial + 1,
        "send_timeout": given["send_timeout_millis"] / 1000,
        "compression": int(given["compression_type"]),
        "max_pending_messages": given["max_pending_messages"] or 50_000,
        "block_if_full": given["block_if_queue_full"],
        "batching": given["batching_enabled"],
        "batching_type": OUR_BATCHING[given["batching_type"]],
        "batching_max_messages": max(1, given["batching_max_messages"]),
        "batching_max_bytes": max(1, given["batching_max_allowed_size_in_bytes"]),
        "batching_max_delay": given["batching_max_publish_delay_ms"] / 1000,
        "routing": _routing(given),
        "hashing": HashingScheme.BOOST,  # the official client's: a program that moves here finds its keys where they were
        "access_mode": int(given["access_mode"]),
        "properties": given["properties"] or None,
    }
    return options | _chunking(given) | _producer_crypto(given)


def _routing(given: dict[str, Any]) -> RoutingMode:
    mode = given["message_routing_mode"]
    check(PartitionsRoutingMode, mode, "message_routing_mode")
    if mode is PartitionsRoutingMode.CustomPartition and given["message_router"] is None:
        raise BY_NAME["InvalidConfiguration"]("CustomPartition needs a message_router")
    single = mode is PartitionsRoutingMode.UseSinglePartition
    return RoutingMode.SINGLE_PARTITION if single else RoutingMode.ROUND_ROBIN


def _chunking(given: dict[str, Any]) -> dict[str, Any]:
    if not given["chunking_enabled"]:
        return {}
    if given["batching_enabled"]:
        raise ValueError("batching_enabled and chunking_enabled exclude each other")
    return {"chunking": True}


def _producer_crypto(given: dict[str, Any]) -> dict[str, Any]:
    key, reader = given["encryption_key"], given["crypto_key_reader"]
    check_optional(str, key, "encryption_key")
    check_optional(CryptoKeyReader, reader, "crypto_key_reader")
    if not key or reader is None:
        return {}
    return {"encryption_keys": (key,), "crypto_keys": _keys(reader)}


def _keys(reader: CryptoKeyReader) -> PemKeys:
    return PemKeys(public=reader.public_key_path or None, private=reader.private_key_path or None)


def reader_options(given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of our client's `create_reader` of what the official one was given."""
    check(str, given["topic"], "topic")
    check(MessageId, given["start_message_id"], "start_message_id")
    check(Schema, given["schema"], "schema")
    check(int, given["receiver_queue_size"], "receiver_queue_size")
    why = "the reader's subscription has a name of its own"
    dead("subscription_role_prefix", given["subscription_role_prefix"], None, why)
    return _decryption(given) | {
        "start_inclusive": given["start_message_id_inclusive"],
        "reader_name": given["reader_name"],
        "receiver_queue_size": max(1, given["receiver_queue_size"]),
        "read_compacted": given["is_read_compacted"],
    }


def consumer_options(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of ConsumerOptions of what `subscribe` was given."""
    if not isinstance(given["topic"], (str, list, re.Pattern)):
        raise ValueError("topic must be a str, a list of them, or a compiled pattern")  # noqa: TRY004 - the official client's class
    check(str, given["subscription_name"], "subscription_name")
    check(Schema, given["schema"], "schema")
    options = _decryption(given)
    _check_consumer(given)
    policy: ConsumerKeySharedPolicy | None = given["key_shared_policy"]
    options |= {
        "consumer_type": ours.ConsumerType(int(given["consumer_type"])),
        "consumer_name": given["consumer_name"] or None,
        "initial_position": int(given["initial_position"]),
        "receiver_queue_size": max(1, given["receiver_queue_size"]),
        "negative_ack_delay": given["negative_ack_redelivery_delay_ms"] / 1000,
        "read_compacted": given["is_read_compacted"],
        "properties": given["properties"] or None,
        "replicate_subscription_state": given["replicate_subscription_state_enabled"],
        "key_shared_policy": None if policy is None else policy.policy(),
    }
    return options | _redelivery(given) | _pattern(given)


def _check_consumer(given: dict[str, Any]) -> None:
    for name in ("receiver_queue_size", "negative_ack_redelivery_delay_ms", "pattern_auto_discovery_period"):
        check(int, given[name], name)
    for name in ("is_read_compacted", "start_message_id_inclusive", "batch_index_ack_enabled"):
        check(bool, given[name], name)
    check(ConsumerType, given["consumer_type"], "consumer_type")
    check(InitialPosition, given["initial_position"], "initial_position")
    check(RegexSubscriptionMode, given["regex_subscription_mode"], "regex_subscription_mode")
    check_optional(str, given["consumer_name"], "consumer_name")
    check_optional(int, given["unacked_messages_timeout_ms"], "unacked_messages_timeout_ms")
    check_optional(dict, given["properties"], "properties")
    check_optional(ConsumerBatchReceivePolicy, given["batch_receive_policy"], "batch_receive_policy")
    check_optional(ConsumerKeySharedPolicy, given["key_shared_policy"], "key_shared_policy")
    check_optional(ConsumerDeadLetterPolicy, given["dead_letter_policy"], "dead_letter_policy")
    total = given["max_total_receiver_queue_size_across_partitions"]
    dead("max_total_receiver_queue_size_across_partitions", total, 50000, _SPREAD)
    dead("broker_consumer_stats_cache_time_ms", given["broker_consumer_stats_cache_time_ms"], 30000, "nothing is cached")


def _redelivery(given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    timeout = given["unacked_messages_timeout_ms"]
    if timeout:
        if timeout < 10_000:
            raise BY_NAME["InvalidConfiguration"]("unacked_messages_timeout_ms must be at least 10000")
        options["ack_timeout"] = timeout / 1000
    if given["dead_letter_policy"] is not None:
        options["dead_letter_policy"] = given["dead_letter_policy"].policy()
    return options


def _pattern(given: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(given["topic"], re.Pattern):
        return {}
    options: dict[str, Any] = {"regex_subscription_mode": int(given["regex_subscription_mode"])}
    period = given["pattern_auto_discovery_period"]
    return options | ({"pattern_discovery_period": float(period)} if period > 0 else {})


def _decryption(given: dict[str, Any]) -> dict[str, Any]:
    reader, action = given["crypto_key_reader"], given["crypto_failure_action"]
    check_optional(CryptoKeyReader, reader, "crypto_key_reader")
    check(ConsumerCryptoFailureAction, action, "crypto_failure_action")
    options: dict[str, Any] = {"crypto_failure_action": CryptoFailureAction[action.name]}
    return options if reader is None else options | {"crypto_keys": _keys(reader)}
