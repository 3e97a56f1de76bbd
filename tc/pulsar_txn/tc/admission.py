"""What a coordinator admits: how many transactions, how many participants, how many bytes, how long a timeout."""

from __future__ import annotations

import attrs

from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import TRANSACTION_BYTES, Transaction
from pulsar_txn.tc.requests import NewTxn
from pulsar_txn.wire.errors import Refusal, ServerError


@attrs.frozen
class Limits:
    """The limits of one coordinator; 0 means no limit, except for `max_timeout_ms`. Each check raises Refusal.

    `max_active`: how many transactions may be open or ending, beside those that are HELD. `max_participants`: how many
    participants one may have. `max_state_bytes`: what all of them may hold, names of participants mostly. `max_timeout_ms`: the
    longest timeout.
    """

    tc_id: int
    max_active: int
    max_participants: int
    max_state_bytes: int
    max_timeout_ms: int

    def check_new(self, state: CoordinatorState, request: NewTxn) -> None:
        """Refuse one more transaction: TooManyRequests for lack of room, NotAllowedError for what it asks."""
        if self.max_active and len(state.transactions) - len(state.held) >= self.max_active:
            raise Refusal(
                ServerError.TooManyRequests,
                f"coordinator {self.tc_id} has {self.max_active} transactions open, as many as it may"
                " (maxActiveTransactionsPerCoordinator): end some, or try later",
            )
        if self.max_state_bytes and state.bytes + TRANSACTION_BYTES > self.max_state_bytes:
            raise self._too_many_bytes(state, TRANSACTION_BYTES)
        timeout_ms, principal = request.timeout_ms, request.principal
        if timeout_ms < 0:
            raise Refusal(ServerError.NotAllowedError, f"a timeout of {timeout_ms} ms is in the past: ask for 0 or more")
        if timeout_ms > self.max_timeout_ms:
            raise Refusal(
                ServerError.NotAllowedError,
                f"a transaction timeout of {timeout_ms} ms is above the limit of this broker: ask for at most"
                f" {self.max_timeout_ms} ms, or raise maxTransactionTimeoutInSeconds",
            )
        if principal is not None and not principal.strip():
            raise Refusal(ServerError.NotAllowedError, "the owner of a transaction must not be blank")

    def check_bytes(self, state: CoordinatorState, added: int) -> None:
        """Refuse `added` bytes more, with TooManyRequests."""
        if self.max_state_bytes and state.bytes + added > self.max_state_bytes:
            raise self._too_many_bytes(state, added)

    def check_participants(self, state: CoordinatorState, txn: Transaction, more: int, added: int) -> None:
        """Refuse `more` participants of `added` bytes: NotAllowedError for one transaction, TooManyRequests for all."""
        if self.max_participants and txn.participant_count + more > self.max_participants:
            raise Refusal(
                ServerError.NotAllowedError,
                f"transaction {txn.txn_id} would have {txn.participant_count + more} participants; it may have"
                f" {self.max_participants} (maxParticipantsPerTransaction): use several transactions",
            )
        if self.max_state_bytes and state.bytes + added > self.max_state_bytes:  # inline: once for each participant
            raise self._too_many_bytes(state, added)

    def check_first(self, state: CoordinatorState, count: int, added: int) -> None:
        """Refuse a transaction that begins with `count` participants of `added` bytes; as `check_participants`."""
        if self.max_participants and count > self.max_participants:
            raise Refusal(
                ServerError.NotAllowedError,
                f"a transaction would begin with {count} participants; it may have {self.max_participants}"
                " (maxParticipantsPerTransaction): use several transactions",
            )
        self.check_bytes(state, TRANSACTION_BYTES + added)

    def _too_many_bytes(self, state: CoordinatorState, added: int) -> Refusal:
        return Refusal(
            ServerError.TooManyRequests,
            f"the open transactions of coordinator {self.tc_id} hold {state.bytes} bytes, {added} more are above"
            f" {self.max_state_bytes} (maxTransactionStateSizeInMB): end some, or try later",
        )
