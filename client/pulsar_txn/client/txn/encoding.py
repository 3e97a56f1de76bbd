"""The frames of requests to a coordinator, as far as they depend on who answers: its features, and how many clusters it has.

A request that goes out again over another connection may meet another server. So it is asked before each attempt whether it
suits the peer (`suit`), and is encoded after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from pulsar_txn.client.errors import FeatureUnsupported, InvalidConfiguration
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

T = TypeVar("T")

Named: TypeAlias = tuple[str, str | None]
"""A topic partition, and the subscription of it that takes part, None for the topic itself."""

_UNCHECKED: Final = Checked()


class NewTxnFrame:
    """NEW_TXN. `nonce`: a coordinator of ours takes two requests that have the same for one."""

    def __init__(
        self, timeout_ms: int, coordinator_id: int, first: Iterable[Named], checked: Checked | None, nonce: bytes
    ) -> None:
        self._timeout_ms = timeout_ms
        self._coordinator_id = coordinator_id
        self._first = [(topic, subscription, cluster) for cluster, topic, subscription in map(_with_cluster, first)]
        self._needs_checks = checked is not None
        self._said = (checked or _UNCHECKED)._replace(nonce=nonce)
        self._more = b""

    def suit(self, connection: Connection) -> None:
        """Check that the peer to which it goes next can take it. FeatureUnsupported."""
        if self._needs_checks:
            check_checks(connection, "a check group or abort_on_disconnect")
        self._more = hot_txn.encode_checked(self._said) if connection.features.supports_checks else b""

    def encode(self, number: int) -> bytes:
        """The frame, with this request id."""
        return hot_txn.encode_new_txn(number, self._timeout_ms, self._coordinator_id, self._first, self._more)


class EndTxnFrame:
    """END_TXN; the arguments are those of `TransactionCoordinators.end_txn`."""

    def __init__(
        self,
        txn_id: TxnId,
        action: TxnAction,
        group: Sequence[TxnId] = (),
        *,
        abort_others: bool = False,
        prepared: PreparedToken | None = None,
        at_decision: bool = False,
        all_answered: bool = False,
    ) -> None:
        self._txn_id = txn_id
        self._action = action
        self._further = [each.least for each in group]
        self._abort_others = abort_others
        self._prepared = prepared
        self._at_decision = at_decision
        self._all_answered = all_answered
        self._early = False
        self.is_plain = not (group or abort_others or prepared or at_decision)
        """True if every coordinator understands it."""

    def suit(self, connection: Connection) -> None:
        """Check that the peer to which it goes next can take it. FeatureUnsupported, InvalidConfiguration.

        A coordinator that cannot answer early answers late, which says more: that is no reason to fail.
        """
        if self._further or self._abort_others:
            _check_groups(connection)
        if self._prepared is not None:
            check_checks(connection, "a prepared transaction")
        self._early = self._at_decision and connection.features.supports_checks

    def encode(self, number: int) -> bytes:
        """The frame, with this request id."""
        return hot_txn.encode_end_txn(
            number,
            self._txn_id,
            self._action,
            self._further,
            abort_others=self._abort_others,
            prepared_token=b"" if self._prepared is None else self._prepared.secret,
            answer_at_decision=self._early,
            all_answered=self._all_answered,
        )


def encode_prepare(token: PreparedToken, number: int) -> bytes:
    """PREPARE_TXN."""
    most, least = token.txn_id
    return command("prepareTxn", request_id=number, txnid_least_bits=least, txnid_most_bits=most, token=token.secret)


def encode_partitions(txn_id: TxnId, named: list[tuple[str, None]], cluster: str, number: int) -> bytes:
    """ADD_PARTITION_TO_TXN."""
    return hot_txn.encode_add_partitions(number, txn_id, [topic for topic, _ in named], cluster)


def encode_subscriptions(txn_id: TxnId, named: list[tuple[str, str]], cluster: str, number: int) -> bytes:
    """ADD_SUBSCRIPTION_TO_TXN."""
    return hot_txn.encode_add_subscriptions(number, txn_id, named, cluster)


def by_cluster(named: Iterable[tuple[str, T]]) -> dict[str, list[tuple[str, T]]]:
    """Topics and what belongs to each, by the cluster that `Core.target` put before the topic."""
    found: dict[str, list[tuple[str, T]]] = {}
    for each in named:
        cluster, topic, what = _with_cluster(each)
        found.setdefault(cluster, []).append((topic, what))
    return found


def _with_cluster(named: tuple[str, T]) -> tuple[str, str, T]:
    target, what = named
    cluster, bar, topic = target.partition("|")
    if not bar or "://" in cluster:  # a topic may have a bar in its name
        return "", target, what
    return cluster, topic, what


def check_checks(connection: Connection, what: str) -> None:
    """FeatureUnsupported unless the peer knows checks and prepared transactions."""
    if not connection.features.supports_checks:
        text = f"{connection.server_version} has neither back-check nor prepare, and {what} needs that"
        raise FeatureUnsupported(text, endpoint=connection.endpoint)


def check_prepares(connection: Connection) -> None:
    """As `check_checks`, of PREPARE_TXN."""
    check_checks(connection, "a prepared transaction")


def _check_groups(connection: Connection) -> None:
    """A broker that passed the group over would commit a part of it."""
    if not connection.features.supports_group_end:
        raise InvalidConfiguration(
            f"{connection.server_version} at {connection.endpoint} does not end several transactions by one record",
            hint="end each by itself, or use a broker that has this extension",
        )
