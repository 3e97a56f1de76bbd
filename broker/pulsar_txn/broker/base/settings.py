"""The broker's configuration: Pulsar's keys in snake_case, with Pulsar's defaults unless a comment says why not."""

from __future__ import annotations

import attrs

from pulsar_txn.wire.secret_text import Secret, optional_secret, shown


class ConfigError(ValueError):
    """A value that cannot be used. The message names the file and line (or the variable) and what is expected there."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """Every key that the broker obeys. Sizes and times carry Pulsar's units, which its names tell."""

    # listening
    bind_address: str = "127.0.0.1"  # Pulsar: 0.0.0.0; whoever reaches a broker without authentication may do everything
    broker_service_port: int | None = 6650
    broker_service_port_tls: int | None = None
    web_service_port: int | None = 8080
    web_service_port_tls: int | None = None
    advertised_address: str | None = None
    web_service_allowed_hosts: str = ""
    max_http_server_connections: int = 500  # Pulsar: 2048
    http_max_request_header_size: int = 8192
    max_http_request_size: int = 1024 * 1024
    http_server_idle_timeout: int = 30_000
    keep_alive_interval_seconds: int = 30
    connection_liveness_check_timeout_millis: int = 5000
    max_message_size: int = 5 * 1024 * 1024
    broker_max_connections: int = 10_000  # Pulsar: 0 (no limit); open files may allow less
    broker_max_connections_per_ip: int = 500  # Pulsar: 0 (no limit)
    max_connections_per_role: int = 5_000  # ours
    incomplete_frame_timeout_seconds: int = 30
    max_message_publish_buffer_size_in_mb: int = 256  # Pulsar: half of the direct memory
    max_pending_publish_requests_per_connection: int = 1000
    max_concurrent_requests_per_connection: int = 1000
    max_concurrent_lookup_request: int = 50_000
    max_concurrent_request_size_in_mb: int = 64
    max_topic_list_in_flight_heap_mem_size_mb: int = 100
    max_producers_per_connection: int = 1000
    max_consumers_per_connection: int = 1000
    max_producers_per_role: int = 20_000  # ours
    max_consumers_per_role: int = 20_000  # ours
    broker_shutdown_timeout_ms: int = 10_000  # Pulsar: 60000; nothing is handed over to another broker here

    # who clients are
    authentication_enabled: bool = False
    authentication_providers: str = ""
    token_secret_key: Secret | None = attrs.field(default=None, converter=optional_secret)
    token_public_key: str | None = None
    token_auth_claim: str = "sub"  # noqa: S105 - the name of a claim
    super_user_roles: str = ""
    authenticate_metrics_endpoint: bool = False
    tls_certificate_file_path: str | None = None
    tls_key_file_path: str | None = None
    tls_trust_certs_file_path: str | None = None
    tls_crl_file_path: str | None = None  # ours
    tls_require_trusted_client_cert_on_connect: bool = False
    tls_cert_refresh_check_duration_sec: int = 300

    # functions
    functions_worker_enabled: bool = False
    functions_worker_without_authentication_allowed: bool = False  # ours
    functions_max_package_size_in_mb: int = 64  # ours

    # storage
    ledger_provider: str = "journal"
    storage_stall_timeout_in_seconds: int = 10  # ours
    max_store_state_bytes: int = 512 * 1024 * 1024  # ours: topics, subscriptions, acknowledgements, metadata in memory
    managed_ledger_max_entries_per_ledger: int = 50_000
    managed_ledger_max_size_per_ledger_mbytes: int = 64  # Pulsar: 2048; the unit in which acknowledged entries go
    managed_ledger_max_ledger_rollover_time_minutes: int = 240
    default_retention_time_in_minutes: int = 0
    default_retention_size_in_mb: int = 0
    retention_check_interval_in_seconds: int = 120

    # topics
    cluster_name: str = "standalone"
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: str = "non-partitioned"
    default_num_partitions: int = 1
    allow_auto_subscription_creation: bool = True
    enable_non_persistent_topics: bool = True
    enable_broker_side_subscription_pattern_evaluation: bool = True
    subscription_pattern_max_length: int = 50
    max_topic_list_watchers: int = 10_000
    max_topic_list_watchers_per_connection: int = 1000
    force_delete_namespace_allowed: bool = False
    encryption_require_on_producer: bool = False
    idle_topic_unload_seconds: int = 300
    max_topics_per_namespace: int = 0
    max_subscriptions_per_topic: int = 10_000  # Pulsar: 0 (no limit)
    max_producers_per_topic: int = 0
    max_waiting_producers_per_topic: int = 1000
    max_consumers_per_subscription: int = 0
    broker_deduplication_enabled: bool = False
    broker_deduplication_max_number_of_producers: int = 10_000
    broker_deduplication_entries_interval: int = 1000

    # dispatch
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    dispatcher_max_read_batch_size: int = 100
    dispatcher_max_read_size_bytes: int = 5 * 1024 * 1024
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_time_millis: int = 100  # Pulsar: 1000, and so much early; here up to so much late, and never early
    delayed_delivery_max_delay_in_millis: int = 0
    max_ack_state_bytes_per_subscription: int = 64 * 1024 * 1024  # ours: acknowledgements out of order
    acknowledgment_at_batch_index_level_enabled: bool = True  # Pulsar: false; transactions need it

    # transactions
    transaction_coordinator_enabled: bool = True  # Pulsar: false
    external_transaction_coordinators_enabled: bool = False  # ours; Pulsar: always
    number_of_transaction_coordinators: int = 16
    max_active_transactions_per_coordinator: int = 10_000  # Pulsar: 0 (no limit)
    max_active_transactions_per_transactional_id: int = 256
    max_active_transactions_per_role: int = 5_000  # ours
    max_prepared_transactions_per_role: int = 1_000  # ours
    max_parked_transactions_per_coordinator: int = 10_000  # ours
    transaction_wait_warning_in_seconds: int = 3_600  # ours
    transactional_id_take_over_timeout_in_millis: int = 10_000  # ours
    max_participants_per_transaction: int = 10_000
    max_transaction_state_size_in_mb: int = 64
    transaction_check_after_in_seconds: int = 6  # ours, as the following ones
    transaction_check_interval_in_seconds: int = 30
    transaction_check_max: int = 15
    transaction_check_policy: str = "park"
    max_check_groups_per_connection: int = 4096
    max_check_group_members: int = 100_000
    max_pending_ack_bytes_per_transaction: int = 128 * 1024 * 1024
    max_pending_ack_bytes_per_subscription: int = 256 * 1024 * 1024
    max_transaction_timeout_in_seconds: int = 3_600
    transaction_metadata_store_provider_class_name: str = "fencing"
    transaction_buffer_provider_class_name: str = "topic"
    transaction_buffer_provider_overrides: str = ""
    transaction_pending_ack_store_provider_class_name: str = "log"
    transaction_outcome_retention_count: int = 1_048_576
