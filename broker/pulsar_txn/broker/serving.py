"""The broker's door for the room above it (`tc_service`): what another server, or another command, takes from the broker.

Nothing here is promised to programs.
"""

from pulsar_txn.broker.base.addresses import reachable
from pulsar_txn.broker.base.closing import close_store, drain
from pulsar_txn.broker.base.config import Setting, build, conf_key, fields_of, read_settings, unknown_keys
from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.repeating import Repeating
from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock, Listener, Runtime
from pulsar_txn.broker.base.settings import BrokerConfig, ConfigError
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.cli.exits import OK, REFUSED, STORE_REFUSED, UNAVAILABLE, USAGE, Ending, cannot_listen
from pulsar_txn.broker.cli.lifetime import LOG_FORMAT, Lifetime, loop_factory
from pulsar_txn.broker.cli.options import command_line_of, load_config
from pulsar_txn.broker.commands.opened import OpenedTransactions
from pulsar_txn.broker.commands.txn import (
    MAX_PARTICIPANTS,
    Coordinating,
    TxnSession,
    identify,
    on_end_txn,
    on_new_txn,
    refuse_new_txn,
)
from pulsar_txn.broker.commands.txn import (
    REFUSED as REFUSALS,
)
from pulsar_txn.broker.net.answering import Answering
from pulsar_txn.broker.net.authentication import Authentication, authentication_of
from pulsar_txn.broker.net.clients import Clients
from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.broker.net.introduction import Introduction
from pulsar_txn.broker.net.ports import CannotListen, Ports
from pulsar_txn.broker.net.tls import tls_of
from pulsar_txn.broker.txn.coordinators import Coordinators, ServingByLane
from pulsar_txn.broker.txn.crash_points import armed
from pulsar_txn.broker.txn.host import Answer
from pulsar_txn.broker.txn.opening import coordinator_log_name
from pulsar_txn.broker.txn.participants import Participants
from pulsar_txn.broker.txn.transactional_ids import TransactionalIds

__all__ = [
    "LOG_FORMAT",
    "MAX_PARTICIPANTS",
    "OK",
    "REFUSALS",
    "REFUSED",
    "STORE_REFUSED",
    "UNAVAILABLE",
    "USAGE",
    "Answer",
    "Answering",
    "AsyncioRuntime",
    "Authentication",
    "BrokerConfig",
    "CannotListen",
    "Clients",
    "Clock",
    "ConfigError",
    "Connection",
    "Coordinating",
    "Coordinators",
    "Ending",
    "Introduction",
    "Lifetime",
    "Limits",
    "Listener",
    "OpenedTransactions",
    "Participants",
    "Ports",
    "Repeating",
    "Runtime",
    "ServingByLane",
    "Setting",
    "TransactionalIds",
    "Turn",
    "TxnSession",
    "armed",
    "authentication_of",
    "build",
    "cannot_listen",
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
    "reachable",
    "read_settings",
    "refuse_new_txn",
    "tls_of",
    "unknown_keys",
]
