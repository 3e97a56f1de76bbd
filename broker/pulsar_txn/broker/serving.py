"""The broker's door for the room above it (`tc_service`): what another server, or another command, takes from the broker.

Nothing here is promised to programs.
"""

from pulsar_txn.broker.cli.exits import OK, REFUSED, UNAVAILABLE, USAGE, Ending

__all__ = ["OK", "REFUSED", "UNAVAILABLE", "USAGE", "Ending"]
