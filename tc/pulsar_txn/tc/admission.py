"""Limits of what a coordinator admits: how many transactions, how many participants, how many bytes, how long a timeout."""

from __future__ import annotations

import attrs

from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import TRANSACTION_BYTES, Transaction
from pulsar_txn.tc.requests import NewTxn
from pulsar_txn.wire.errors import Refusal, ServerError


@attrs.frozen
class Limits:
    """The limits of one coordinator; 0 means no limit, except for `max_timeout_ms`. Each check raises Refusal.

    `max_active`: how many transactions may be open, prepared or ending. `max_participants`: how many participants one may have.
    `max_state_bytes`: what all of them may hold, names of participants mostly. `max_timeout_ms`: the longest timeout.
    `max_active_of_role`: as `max_active`, of one principal; those without one are not limited by it.

    `max_prepared_of_role`: how many one principal, or all without one together, may have prepared. What is prepared may stay
    for ever, so it never takes all room: one role has at most a quarter of `max_active` and `max_state_bytes` prepared, and all
    roles have half of it.

    What is HELD counts for no number, and what is parked for nothing of this. `max_parked`: how many of these there may be; all
    of them hold at most `max_state_bytes` as well. For which there is no room stays open, and counts as that.
    """

    tc_id: int
    max_active: int
    max_participants: int
    max_state_bytes: int
    max_timeout_ms: int
    max_active_of_role: int = 0
    max_prepared_of_role: int = 0
    max_parked: int = 0

    def check_new(self, state: CoordinatorState, request: NewTxn) -> None:
        """Refuse one more transaction: TooManyRequests for lack of room, NotAllowedError for what it asks."""
        timeout_ms, principal = request.timeout_ms, request.principal
        parked = state.extra
        if self.max_active and len(state.transactions) - len(state.held) - len(parked.parked_ms) >= self.max_active:
            raise self._too_many_active()
        if self.max_active_of_role and principal is not None:
            self._check_role(state, principal)
        if self.max_state_bytes and state.bytes - parked.parked_bytes + TRANSACTION_BYTES > self.max_state_bytes:
            raise self._too_many_bytes(state, TRANSACTION_BYTES)
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

    def _too_many_active(self) -> Refusal:
        return Refusal(
            ServerError.TooManyRequests,
            f"coordinator {self.tc_id} has {self.max_active} transactions open, as many as it may"
            " (maxActiveTransactionsPerCoordinator): end some, or try later",
        )

    def _check_role(self, state: CoordinatorState, principal: str) -> None:
        most = self.max_active_of_role
        if most and state.active_of.get(principal, 0) >= most:
            raise Refusal(
                ServerError.TooManyRequests,
                f"role {principal!r} has {most} transactions open at coordinator {self.tc_id}, as many as it may"
                " (maxActiveTransactionsPerRole): end some, or try later",
            )

    def check_resumed(self, state: CoordinatorState, txn: Transaction) -> None:
        """Refuse to resume a parked transaction, with TooManyRequests, for lack of room."""
        if self.max_active and len(state.transactions) - len(state.held) - len(state.extra.parked_ms) >= self.max_active:
            raise self._too_many_active()
        if txn.owner[0] is not None:
            self._check_role(state, txn.owner[0])
        self.check_bytes(state, txn.bytes)

    def can_park(self, state: CoordinatorState, more: int, added: int) -> bool:
        """True if one transaction more may be parked beside `more` others; all of these have `added` bytes."""
        parked, size = len(state.extra.parked_ms) + more, state.extra.parked_bytes + added
        return (not self.max_parked or parked < self.max_parked) and (not self.max_state_bytes or size <= self.max_state_bytes)

    def check_prepare(self, state: CoordinatorState, txn: Transaction, added: int) -> None:
        """Refuse to prepare a transaction that grows by `added` bytes, with TooManyRequests."""
        if txn.is_parked:
            self.check_resumed(state, txn)
        self.check_bytes(state, added)
        extra, principal, size = state.extra, txn.owner[0], txn.bytes + added
        count, of_role = extra.prepared_of.get(principal, (0, 0))
        what = "what has no role" if principal is None else f"role {principal!r}"
        most, most_bytes = self.max_active and max(1, self.max_active // 2), self.max_state_bytes // 2
        share, share_bytes = (max(1, most // 2) if most else 0), most_bytes // 2
        limits = (
            (self.max_prepared_of_role, count, f"{what} has", "maxPreparedTransactionsPerRole"),
            (share, count, f"{what} has", "a quarter of maxActiveTransactionsPerCoordinator"),
            (most, len(extra.prepared_ms), "all roles have", "half of maxActiveTransactionsPerCoordinator"),
        )
        for allowed, there, who, why in limits:
            if allowed and there >= allowed:
                raise self._too_many_prepared(f"{who} {there} transactions prepared", why)
        if self.max_state_bytes and of_role + size > share_bytes:
            raise self._too_many_prepared(f"{what} has {of_role} bytes prepared", "a quarter of maxTransactionStateSizeInMB")
        if self.max_state_bytes and extra.prepared_bytes + size > most_bytes:
            held = f"all roles have {extra.prepared_bytes} bytes prepared"
            raise self._too_many_prepared(held, "half of maxTransactionStateSizeInMB")

    def _too_many_prepared(self, what: str, why: str) -> Refusal:
        text = f"{what} at coordinator {self.tc_id}, as many as may be ({why}): commit or abort some, or try later"
        return Refusal(ServerError.TooManyRequests, text)

    def check_bytes(self, state: CoordinatorState, added: int) -> None:
        """Refuse `added` bytes more, with TooManyRequests."""
        if self.max_state_bytes and state.bytes - state.extra.parked_bytes + added > self.max_state_bytes:
            raise self._too_many_bytes(state, added)

    def check_participants(self, state: CoordinatorState, txn: Transaction, more: int, added: int) -> None:
        """Refuse `more` participants of `added` bytes: NotAllowedError for one transaction, TooManyRequests for all."""
        if self.max_participants and txn.participant_count + more > self.max_participants:
            raise Refusal(
                ServerError.NotAllowedError,
                f"transaction {txn.txn_id} would have {txn.participant_count + more} participants; it may have"
                f" {self.max_participants} (maxParticipantsPerTransaction): use several transactions",
            )
        held = state.extra.parked_bytes if txn.is_parked else state.bytes - state.extra.parked_bytes
        if self.max_state_bytes and held + added > self.max_state_bytes:
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
            f"the transactions of coordinator {self.tc_id} hold {state.bytes} bytes, {added} more are above"
            f" {self.max_state_bytes} (maxTransactionStateSizeInMB): end some, or try later",
        )
