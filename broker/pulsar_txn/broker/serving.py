"""The broker's door for the room above it (`tc_service`): what another server, or another command, takes from the broker.

Nothing here is promised to programs. The names of its HTTP side load aiohttp and prometheus_client, which take longer than
a server takes to start: they are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.addresses import reachable
from pulsar_txn.broker.base.closing import close_store, drain
from pulsar_txn.broker.base.config import Setting, build, conf_key, fields_of, read_settings, refuse_unknown, unknown_keys
from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.loop_meter import Histogram
from pulsar_txn.broker.base.repeating import Repeating
from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock, Listener, Runtime
from pulsar_txn.broker.base.settings import BrokerConfig, ConfigError
from pulsar_txn.broker.base.storage_watch import LOOK_SECONDS, StorageWatch
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.cli.exits import OK, REFUSED, STORE_REFUSED, UNAVAILABLE, USAGE, Ending, cannot_listen
from pulsar_txn.broker.cli.lifetime import LOG_FORMAT, Lifetime, loop_factory
from pulsar_txn.broker.cli.options import command_line_of, load_config
from pulsar_txn.broker.commands.check_groups import HANDLERS as CHECK_HANDLERS
from pulsar_txn.broker.commands.txn import (
    DESCRIBE_HANDLERS,
    MAX_PARTICIPANTS,
    identify,
    on_end_txn,
    on_new_txn,
    on_prepare_txn,
    refuse_new_txn,
)
from pulsar_txn.broker.commands.txn import (
    REFUSED as REFUSALS,
)
from pulsar_txn.broker.commands.txn_session import ClientTransactions, Coordinating, TxnSession
from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.net.authentication import Authentication, authentication_of
from pulsar_txn.broker.net.clients import Clients
from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.broker.net.introduction import Introduction
from pulsar_txn.broker.net.ports import CannotListen, Ports
from pulsar_txn.broker.net.tls import tls_of
from pulsar_txn.broker.txn.check_groups import check_options
from pulsar_txn.broker.txn.coordinator_host import (
    CoordinatorHost,
    ServingByLane,
    coordinator_log_name,
)
from pulsar_txn.broker.txn.coordinators import (
    WAITS_SECONDS,
    Coordinators,
    LongWaits,
)
from pulsar_txn.broker.txn.hosts import News, asked
from pulsar_txn.broker.txn.participants import Participants
from pulsar_txn.broker.txn.transactional_ids import TakeOvers, TransactionalIds
from pulsar_txn.ledger.hosting import Answer

if TYPE_CHECKING:
    from pulsar_txn.broker.admin.answers import TURN as TURN
    from pulsar_txn.broker.admin.answers import Handler as Handler
    from pulsar_txn.broker.admin.answers import Routes as Routes
    from pulsar_txn.broker.admin.answers import failed as failed
    from pulsar_txn.broker.admin.coordinators import COORDINATED as COORDINATED
    from pulsar_txn.broker.admin.coordinators import COORDINATOR_ROUTES as COORDINATOR_ROUTES
    from pulsar_txn.broker.admin.coordinators import Coordinated as Coordinated
    from pulsar_txn.broker.admin.coordinators import abort_transaction as abort_transaction
    from pulsar_txn.broker.admin.coordinators import all_for as all_for
    from pulsar_txn.broker.admin.coordinators import commit_transaction as commit_transaction
    from pulsar_txn.broker.admin.coordinators import coordinator_stats as coordinator_stats
    from pulsar_txn.broker.admin.coordinators import coordinators_of as coordinators_of
    from pulsar_txn.broker.admin.coordinators import listed as listed
    from pulsar_txn.broker.admin.coordinators import own_fields as own_fields
    from pulsar_txn.broker.admin.coordinators import resume_transaction as resume_transaction
    from pulsar_txn.broker.admin.coordinators import slow_transactions as slow_transactions
    from pulsar_txn.broker.admin.coordinators import sort_key_of as sort_key_of
    from pulsar_txn.broker.admin.coordinators import transaction_metadata as transaction_metadata
    from pulsar_txn.broker.admin.coordinators import txn_id_of as txn_id_of
    from pulsar_txn.broker.admin.errors import errors as errors
    from pulsar_txn.broker.admin.exposition import counter as counter
    from pulsar_txn.broker.admin.exposition import gauge as gauge
    from pulsar_txn.broker.admin.exposition import histogram as histogram
    from pulsar_txn.broker.admin.exposition import limits_reached as limits_reached
    from pulsar_txn.broker.admin.exposition import of_coordinators as of_coordinators
    from pulsar_txn.broker.admin.exposition import of_loop as of_loop
    from pulsar_txn.broker.admin.exposition import texts as texts
    from pulsar_txn.broker.admin.guard import guard as guard
    from pulsar_txn.broker.admin.identity import Rules as Rules
    from pulsar_txn.broker.admin.identity import asker as asker
    from pulsar_txn.broker.admin.identity import identify_askers as identify_askers
    from pulsar_txn.broker.admin.lists import chunked_response as chunked_response
    from pulsar_txn.broker.admin.lists import limit as limit
    from pulsar_txn.broker.admin.lists import object_response as object_response
    from pulsar_txn.broker.admin.transactional_ids import ID_ROUTES as ID_ROUTES
    from pulsar_txn.broker.admin.transactional_ids import describe_id as describe_id
    from pulsar_txn.broker.admin.transactional_ids import list_ids as list_ids
else:
    _HTTP: Final = {
        "answers": ("TURN", "Handler", "Routes", "failed"),
        "coordinators": (
            "COORDINATED",
            "COORDINATOR_ROUTES",
            "Coordinated",
            "abort_transaction",
            "all_for",
            "commit_transaction",
            "coordinator_stats",
            "coordinators_of",
            "listed",
            "sort_key_of",
            "resume_transaction",
            "own_fields",
            "slow_transactions",
            "transaction_metadata",
            "txn_id_of",
        ),
        "errors": ("errors",),
        "exposition": ("counter", "gauge", "histogram", "limits_reached", "of_coordinators", "of_loop", "texts"),
        "guard": ("guard",),
        "identity": ("Rules", "asker", "identify_askers"),
        "lists": ("limit", "object_response", "chunked_response"),
        "transactional_ids": ("ID_ROUTES", "describe_id", "list_ids"),
    }
    _WHERE: Final = {name: module for module, names in _HTTP.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"pulsar_txn.broker.admin.{_WHERE[name]}"), name)


__all__ = [
    "CHECK_HANDLERS",
    "DESCRIBE_HANDLERS",
    "LOG_FORMAT",
    "LOOK_SECONDS",
    "MAX_PARTICIPANTS",
    "OK",
    "REFUSALS",
    "REFUSED",
    "STORE_REFUSED",
    "UNAVAILABLE",
    "USAGE",
    "WAITS_SECONDS",
    "Answer",
    "Answering",
    "AsyncioRuntime",
    "Authentication",
    "BrokerConfig",
    "CannotListen",
    "ClientTransactions",
    "Clients",
    "Clock",
    "ConfigError",
    "Connection",
    "Coordinating",
    "CoordinatorHost",
    "Coordinators",
    "Ending",
    "Histogram",
    "HttpServer",
    "Introduction",
    "Lifetime",
    "Limits",
    "Listener",
    "LongWaits",
    "News",
    "Participants",
    "Ports",
    "Repeating",
    "Runtime",
    "ServingByLane",
    "Setting",
    "StorageWatch",
    "TakeOvers",
    "TransactionalIds",
    "Turn",
    "TxnSession",
    "asked",
    "authentication_of",
    "build",
    "cannot_listen",
    "check_options",
    "close_store",
    "command_line_of",
    "conf_key",
    "coordinator_log_name",
    "drain",
    "fields_of",
    "identify",
    "load_config",
    "loop_factory",
    "on_end_txn",
    "on_new_txn",
    "on_prepare_txn",
    "reachable",
    "read_settings",
    "refuse_new_txn",
    "refuse_unknown",
    "tls_of",
    "unknown_keys",
]
