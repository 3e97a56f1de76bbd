"""Errors that only functions raise; everything else is in `pulsar_txn.client.errors`."""

from __future__ import annotations

from pulsar_txn.client.errors import PulsarError


class StateTaken(PulsarError):
    """Another instance of the function has taken over its state. This one must stop; nothing of its transaction is visible."""

    fatal = True
    default_hint = "a function with state has one instance: stop the older one; with retainOrdering a second process waits"


class StateMoved(PulsarError):
    """Another instance has taken over the state of one input partition. The messages are tried again where they belong."""

    retriable = True
