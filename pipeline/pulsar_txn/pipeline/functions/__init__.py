"""Pulsar Functions in Python, as a library: `await functions.run(client, config, function)`.

A function file of the official runtime runs here with its names (`Function`, `Context`, `SerDe`), its configuration keys
and its guarantees; `transaction: {transactionMode: MANAGED}` (PIP-439) puts acknowledgement, output and `context.publish`
into one transaction. `python -m pulsar_txn.pipeline.functions localrun` is the same as a command.
"""

from pulsar_txn.pipeline.functions._guarantees import FunctionEvent
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.context import Context, WindowView
from pulsar_txn.pipeline.functions.errors import StateMoved, StateTaken
from pulsar_txn.pipeline.functions.interface import Function, IdentitySerDe, PickleSerDe, SerDe
from pulsar_txn.pipeline.functions.runner import FunctionRun, run
from pulsar_txn.pipeline.functions.sections import (
    InputSpec,
    ProcessingGuarantees,
    ProducerConfig,
    StateConfig,
    StateScope,
    SubscriptionPosition,
    TransactionConfig,
    TransactionMode,
)
from pulsar_txn.pipeline.functions.stats import FunctionStats, UserMetric
from pulsar_txn.pipeline.functions.windows.config import WindowConfig

__all__ = [
    "Context",
    "Function",
    "FunctionConfig",
    "FunctionEvent",
    "FunctionRun",
    "FunctionStats",
    "IdentitySerDe",
    "InputSpec",
    "PickleSerDe",
    "ProcessingGuarantees",
    "ProducerConfig",
    "SerDe",
    "StateConfig",
    "StateMoved",
    "StateScope",
    "StateTaken",
    "SubscriptionPosition",
    "TransactionConfig",
    "TransactionMode",
    "UserMetric",
    "WindowConfig",
    "WindowView",
    "run",
]
