"""CONNECT and keep-alive, and lookups."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.topics import InvalidName, TopicName

from .session import Handler, Session

_PROTOCOL_VERSION: Final = 21
_MAX_VERSION_LENGTH: Final = 256
_SERVER_VERSION: Final = f"pulsar-txn {version('pulsar-txn')}"


def on_connect(session: Session, body: Any) -> None:
    """CONNECT: who the client is. A second one closes the connection, and so does one that is refused."""
    if session.connection.connected:
        raise MalformedFrame("CONNECT came a second time")
    if not session.introduction.let_in(session, body):
        return
    session.answers_checks = body.feature_flags.supports_checks
    session.connection.know(body.client_version[:_MAX_VERSION_LENGTH])
    session.connection.write_command(
        "connected",
        server_version=_SERVER_VERSION,
        protocol_version=min(_PROTOCOL_VERSION, body.protocol_version),
        max_message_size=session.services.config.max_message_size,
        feature_flags=pb.FeatureFlags(
            supports_topic_watchers=session.services.config.enable_broker_side_subscription_pattern_evaluation,
            supports_topic_watcher_reconcile=session.services.config.enable_broker_side_subscription_pattern_evaluation,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_transactional_ids=session.services.transactional_ids is not None,
            keeps_transaction_outcomes=session.services.config.transaction_outcome_retention_count > 0,
            supports_group_end=session.services.ends_groups,
            supports_txn_deduplication=True,
            supports_committed_position=True,
            tells_halves=True,
            describes_transactional_ids=session.services.transactional_ids is not None,
            supports_checks=session.services.checks,
        ),
    )


def on_auth_response(session: Session, body: Any) -> None:
    """AUTH_RESPONSE: fresh credentials, which the client was asked for."""
    session.introduction.renew(body)


def on_ping(session: Session, body: Any) -> None:
    """PING."""
    session.connection.write_command("pong")


def on_pong(session: Session, body: Any) -> None:
    """PONG: that something was heard is noted already."""


async def on_partitioned_metadata(session: Session, body: Any) -> None:
    """PARTITIONED_METADATA: 0 for topics that have no partitions, and for those that are not there."""
    services = session.services
    try:
        name = TopicName.parse(body.topic)
        partitions = await services.catalog.partitions_or_create(name, may_create=body.metadata_auto_creation_enabled)
    except (Refusal, InvalidName) as error:
        code = error.code if isinstance(error, Refusal) else ServerError.InvalidTopicName
        session.connection.write_command(
            "partitionMetadataResponse",
            request_id=body.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=int(code),
            message=str(error),
        )
        return
    session.connection.write_command(
        "partitionMetadataResponse",
        request_id=body.request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )


def on_lookup(session: Session, body: Any) -> None:
    """LOOKUP: every topic is here; the client stays on the address that it came by."""
    try:
        TopicName.parse(body.topic)
    except InvalidName as error:
        session.connection.write_command(
            "lookupTopicResponse",
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=int(ServerError.InvalidTopicName),
            message=str(error),
        )
        return
    session.connection.write_command(
        "lookupTopicResponse",
        request_id=body.request_id,
        brokerServiceUrl=session.services.service_url,
        brokerServiceUrlTls=session.services.service_url_tls,
        response=pb.CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=True,
    )


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.CONNECT: on_connect,
    pb.BaseCommand.AUTH_RESPONSE: on_auth_response,
    pb.BaseCommand.PING: on_ping,
    pb.BaseCommand.PONG: on_pong,
    pb.BaseCommand.PARTITIONED_METADATA: on_partitioned_metadata,
    pb.BaseCommand.LOOKUP: on_lookup,
}
