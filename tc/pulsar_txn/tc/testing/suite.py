"""Promises of every transaction coordinator, as test methods; subclass it and set `factory`.

The suite does not accept: an id that is given twice, an answer before what it promises is durable, a participant that hears of
an outcome before the decision is durable, two outcomes of one transaction, a participant that is added after the decision, an
outcome that is told to a stranger, a transaction that outlives its timeout, and a restart, at any record, with or without a
snapshot, that leads anywhere else. Of a plug-in that says `checks` (see
`requests.Coordinator`) it asks for what is promised in `checks` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from pulsar_txn.ledger.machine import AwaitOutcome, Step
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.tc.ids import has_lane
from pulsar_txn.tc.requests import Check, EndTxn, GroupJoined
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, coordinator_of

from . import checks
from .host import TC_ID, Factory, HostedCoordinator

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TOPIC, OTHER, SUBSCRIPTION = Participant("t"), Participant("u"), Participant("t", "s")
STATES = ("open", "committing", "committed", "aborting", "aborted")


class TransactionCoordinatorSuite:
    """The suite. `factory(tc_id)` gives a fresh coordinator."""

    factory: ClassVar[Any]

    def host(self) -> HostedCoordinator:
        """A fresh coordinator with an empty log."""
        factory: Factory = type(self).factory  # not self.factory: a function must not become a method
        return HostedCoordinator(factory)

    # ---- ids

    def test_an_id_is_given_after_its_record_is_durable(self) -> None:
        host = self.host()
        token = host.new()
        assert token not in host.answers
        host.confirm()
        assert coordinator_of(host.answers[token].most) == TC_ID

    def test_ids_ascend_and_none_is_given_twice_also_after_a_crash(self) -> None:
        host = self.host()
        given = [host.opened() for _ in range(3)]
        for _ in range(3):
            host.new()  # never confirmed
            host = host.crashed()
            given.append(host.opened())
        assert given == sorted(set(given))

    def test_a_timeout_that_lies_in_the_past_is_refused(self) -> None:
        host = self.host()
        token = host.new(-1)
        host.confirm()
        assert host.answers[token] is ServerError.NotAllowedError

    # ---- participants

    def test_a_participant_is_registered_after_its_record_is_durable(self) -> None:
        host = self.host()
        txn_id = host.opened()
        token = host.add(txn_id, TOPIC, SUBSCRIPTION)
        assert token not in host.answers
        host.confirm()
        assert host.answers[token] is None
        assert [host.machine.is_registered(txn_id, each) for each in (TOPIC, SUBSCRIPTION, OTHER)] == [True, True, False]
        written = len(host.entries)
        again = host.add(txn_id, TOPIC)
        host.confirm()
        assert host.answers[again] is None
        assert len(host.entries) == written, "what is registered is not written again"

    def test_participants_are_asked_for_in_the_order_of_the_log(self) -> None:
        host = self.host()
        txn_id = host.opened()
        host.add(txn_id, TOPIC)
        token = host.asks(txn_id, TOPIC)
        assert token not in host.answers, "the registration is not durable yet"
        host.confirm()
        assert host.answers[token] is True

    def test_nothing_is_added_after_the_decision(self) -> None:
        for state in STATES[1:]:
            host = self.host()
            txn_id = self._in_state(host, state)
            token = host.add(txn_id, OTHER)
            host.confirm()
            assert host.answers[token] is ServerError.InvalidTxnStatus
            assert not host.machine.is_registered(txn_id, TOPIC)
            assert all(tell.participant != OTHER for tell in host.told)

    # ---- ends

    def test_participants_hear_of_an_outcome_after_the_decision_is_durable(self) -> None:
        for action in TxnAction:
            host = self.host()
            txn_id = host.opened()
            host.add(txn_id, TOPIC, SUBSCRIPTION)
            host.confirm()
            token = host.end(txn_id, action)
            assert host.told == []
            host.confirm()
            assert {(tell.participant, tell.action) for tell in host.told} == {(TOPIC, action), (SUBSCRIPTION, action)}
            assert token not in host.answers, "the participants do not hold it yet"
            host.settle()
            assert token in host.answers
            assert host.ended == {txn_id: action}

    def test_a_transaction_without_participants_ends_by_its_decision(self) -> None:
        host = self.host()
        txn_id = host.opened()
        token = host.end(txn_id, COMMIT)
        assert token not in host.answers
        host.confirm()
        assert token in host.answers
        assert host.ended == {txn_id: COMMIT}

    def test_a_repeated_end_is_answered_like_the_first_one(self) -> None:
        for action in TxnAction:
            host = self.host()
            txn_id = host.opened()
            host.add(txn_id, TOPIC)
            first, joined = host.end(txn_id, action), host.end(txn_id, action)
            host.confirm()
            assert not {first, joined} & host.answers.keys()
            host.settle()
            late = host.end(txn_id, action)
            host.confirm()
            assert [host.answers[token] for token in (first, joined, late)] == [None] * 3
            assert len(host.told) == 1

    def test_the_first_outcome_stays(self) -> None:
        for state in STATES[1:]:
            host = self.host()
            txn_id = self._in_state(host, state)
            other = ABORT if state.startswith("commit") else COMMIT
            token = host.end(txn_id, other)
            host.settle()
            assert host.answers[token] is ServerError.InvalidTxnStatus
            assert host.ended == {txn_id: ABORT if other is COMMIT else COMMIT}

    def test_an_end_that_nobody_decided_cannot_be_done(self) -> None:
        host = self.host()
        refusal = host.done(self._in_state(host, "open"))
        assert refusal is not None
        assert refusal.code is ServerError.InvalidTxnStatus

    def test_the_low_watermark_covers_nothing_that_is_open_or_ending(self) -> None:
        host = self.host()
        first, second, third = (host.opened() for _ in range(3))
        for txn_id in (first, second, third):
            host.add(txn_id, TOPIC)
        for txn_id in (second, first, third):
            host.end(txn_id, COMMIT)
            host.settle()
        marks = [tell.low_watermark for tell in host.told]
        assert marks == (
            [second.least, first.least, third.least]
            if has_lane(first.most)
            else [first.least - 1, first.least - 1, second.least]
        )
        assert len({first.most, second.most, third.most}) == (3 if has_lane(first.most) else 1)

    # ---- strangers

    def test_what_was_never_given_is_not_found(self) -> None:
        host = self.host()
        opened = host.opened()
        for txn_id in (
            TxnId(opened.most, 99),
            TxnId(opened.most + 1, opened.least),
            TxnId(opened.most + (1 << 48), opened.least),
        ):
            tokens = host.add(txn_id, TOPIC), host.end(txn_id, COMMIT)
            host.confirm()
            assert [host.answers[token] for token in tokens] == [ServerError.TransactionNotFound] * 2
            assert not host.machine.is_registered(txn_id, TOPIC)

    def test_a_transaction_is_found_by_its_owner_and_a_superuser_only(self) -> None:
        for state in STATES:
            host = self.host()
            txn_id = self._in_state(host, state, "anna")
            action = ABORT if state.startswith("abort") else COMMIT
            tokens = host.end(txn_id, action, "bert"), host.end(txn_id, action), host.add(txn_id, OTHER, principal="bert")
            host.confirm()
            assert [host.answers[token] for token in tokens] == [ServerError.TransactionNotFound] * 3
            found = host.end(txn_id, action, "anna"), host.end(txn_id, action, superuser=True)
            host.settle()
            assert [host.answers[token] for token in found] == [None] * 2

    def test_a_superuser_registers_participants_in_what_somebody_else_has_open(self) -> None:
        host = self.host()
        txn_id = self._in_state(host, "open", "anna")
        token = host.add(txn_id, OTHER, principal="root", superuser=True)
        host.settle()
        assert host.answers[token] is None

    def test_a_transaction_belongs_to_the_principal_that_opened_it(self) -> None:
        for state in STATES:
            host = self.host()
            of_anna, of_nobody = self._in_state(host, state, "anna"), self._in_state(host, state)
            for _ in range(2):
                belongs = [host.machine.belongs_to(of_anna, each) for each in ("anna", "bert", None)]
                assert belongs == [True, False, False]
                assert [host.machine.belongs_to(of_nobody, each) for each in ("anna", None)] == [False, True]
                assert not host.machine.belongs_to(TxnId(of_anna.most, of_nobody.least + 1), "anna")
                host = host.crashed()

    def test_what_nobody_in_particular_opened_is_for_nobody_in_particular_and_superusers_only(self) -> None:
        for state in STATES:
            host = self.host()
            txn_id = self._in_state(host, state)
            action = ABORT if state.startswith("abort") else COMMIT
            tokens = host.end(txn_id, action, "anna"), host.add(txn_id, OTHER, principal="anna")
            host.confirm()
            assert [host.answers[token] for token in tokens] == [ServerError.TransactionNotFound] * 2
            found = host.end(txn_id, action), host.end(txn_id, action, superuser=True)
            host.settle()
            assert [host.answers[token] for token in found] == [None] * 2

    # ---- time

    def test_an_open_transaction_is_aborted_when_its_timeout_is_over(self) -> None:
        for timeout_ms in (0, 1, 500):
            host = self.host()
            txn_id = host.opened(timeout_ms)
            if timeout_ms:
                host.add(txn_id, TOPIC)
                host.advance(timeout_ms - 1)
                assert host.machine.is_registered(txn_id, TOPIC)
            host.advance(1)
            host.settle()
            assert host.ended == {txn_id: ABORT}

    def test_a_timeout_does_not_touch_what_is_decided(self) -> None:
        host = self.host()
        txn_id = self._in_state(host, "committing")
        host.advance(10**9)
        host.settle()
        assert host.ended == {txn_id: COMMIT}

    def test_a_timeout_counts_across_a_restart(self) -> None:
        host = self.host()
        txn_id = host.opened(500)
        host = host.crashed()
        host.advance(499)
        assert host.ended == {}
        host.advance(1)
        host.confirm()
        assert host.ended == {txn_id: ABORT}

    def test_time_does_not_go_back_behind_the_log(self) -> None:
        host = self.host()
        host.advance(10_000)
        host.opened()
        assert host.crashed().machine.newest_time_ms >= host.now_ms

    # ---- check groups, prepared transactions, nonces: of a plug-in that says `checks`

    def test_a_living_member_is_asked_and_counted_durably_before_it_goes_on(self) -> None:
        self._if_it_checks(checks.a_living_member_is_asked_and_counted_durably_before_it_goes_on)

    def test_a_question_that_nobody_begins_counts_for_nothing(self) -> None:
        self._if_it_checks(checks.a_question_that_nobody_begins_counts_for_nothing)

    def test_no_more_is_asked_at_once_than_there_is_room_for(self) -> None:
        self._if_it_checks(checks.no_more_is_asked_at_once_than_there_is_room_for)

    def test_nobody_else_is_asked_and_who_comes_later_is_asked_at_once(self) -> None:
        self._if_it_checks(checks.nobody_else_is_asked_and_who_comes_later_is_asked_at_once)

    def test_an_answer_decides_once(self) -> None:
        self._if_it_checks(checks.an_answer_decides_once)

    def test_questions_are_counted_across_crashes_and_come_to_an_end(self) -> None:
        self._if_it_checks(checks.questions_are_counted_across_crashes_and_come_to_an_end)

    def test_what_is_prepared_waits_whatever_happens(self) -> None:
        self._if_it_checks(checks.what_is_prepared_waits_whatever_happens)

    def test_a_prepare_is_durable_before_its_answer_and_repeats_itself(self) -> None:
        self._if_it_checks(checks.a_prepare_is_durable_before_its_answer_and_repeats_itself)

    def test_who_shows_the_token_ends_it_and_repeats_that(self) -> None:
        self._if_it_checks(checks.who_shows_the_token_ends_it_and_repeats_that)

    def test_what_is_prepared_is_asked_for_without_an_end(self) -> None:
        self._if_it_checks(checks.what_is_prepared_is_asked_for_without_an_end)

    def test_a_nonce_opens_once(self) -> None:
        self._if_it_checks(checks.a_nonce_opens_once)

    def test_an_end_may_be_answered_by_its_decision(self) -> None:
        self._if_it_checks(checks.an_end_may_be_answered_by_its_decision)

    # ---- restarts

    def test_what_was_answered_holds_after_a_crash(self) -> None:
        for action in TxnAction:
            host = self.host()
            txn_id = host.opened()
            host.add(txn_id, TOPIC)
            host.confirm()
            assert host.crashed().machine.is_registered(txn_id, TOPIC)
            host.end(txn_id, action)
            host.settle()
            again = host.crashed()
            token = again.end(txn_id, action)
            again.settle()
            assert again.answers[token] is None

    def test_a_decision_that_is_durable_is_carried_out_again(self) -> None:
        for action in TxnAction:
            host = self.host()
            txn_id = host.opened()
            host.add(txn_id, TOPIC, OTHER)
            host.end(txn_id, action)
            host.confirm()
            again = host.crashed()
            again.settle()
            assert {(tell.participant, tell.action) for tell in again.told} == {(TOPIC, action), (OTHER, action)}
            assert again.ended == {txn_id: action}

    def test_a_restart_at_every_record_leads_to_one_outcome_of_each_transaction(self) -> None:
        host, decided = self._history()
        for count in range(len(host.entries) + 1):
            again = host.crashed(count)
            again.advance(0)  # what recovery left to `expire`
            again.settle()
            known = dict(again.ended)
            assert all(decided[txn_id] is action for txn_id, action in known.items())
            again.advance(10**9)
            again.settle()
            assert all(action is ABORT for txn_id, action in again.ended.items() if txn_id not in known)

    def test_a_restart_with_any_snapshot_equals_one_without(self) -> None:
        for host, count, snapshots in self._crashes():
            expected = _observe(host.crashed(count))
            for snapshot in snapshots:
                assert _observe(host.crashed(count, snapshot)) == expected

    def test_a_crash_in_recovery_is_a_restart_like_any_other(self) -> None:
        for host, count, _ in self._crashes():
            again = host.crashed(count)
            expected = _observe(again)
            assert _observe(again.crashed(len(again.entries))) == expected

    def test_bytes_that_are_no_record_are_refused(self) -> None:
        machine = self.host().machine
        for decode in (lambda data: machine.decode(machine.logs[0], data), machine.restore):
            try:
                decode(b"\xff\xff\xff\xff")
            except WireError:
                continue
            raise AssertionError("what is no record, or no slice of a snapshot, was taken for one")

    # ----

    def _if_it_checks(self, promise: Callable[[Callable[[], HostedCoordinator]], None]) -> None:
        if getattr(self.host().machine, "checks", False):
            promise(self.host)

    def _in_state(self, host: HostedCoordinator, state: str, principal: str | None = None) -> TxnId:
        txn_id = host.opened(principal=principal)
        host.add(txn_id, TOPIC, principal=principal)
        host.confirm()
        if state != "open":
            host.end(txn_id, COMMIT if state.startswith("commit") else ABORT, principal)
            host.confirm()
        if state in ("committed", "aborted"):
            host.settle()
        return txn_id

    def _history(self) -> tuple[HostedCoordinator, dict[TxnId, TxnAction]]:
        """A coordinator with transactions in every state, and what was decided."""
        host = self.host()
        return host, self._write(host)

    def _write(self, host: HostedCoordinator) -> dict[TxnId, TxnAction]:
        decided: dict[TxnId, TxnAction] = {}
        for round_ in range(2):
            for state in STATES:
                txn_id = self._in_state(host, state, "anna" if round_ else None)
                if state != "open":
                    decided[txn_id] = COMMIT if state.startswith("commit") else ABORT
                host.advance(7)
        if getattr(host.machine, "checks", False):
            self._write_checks(host)
        return decided

    def _write_checks(self, host: HostedCoordinator) -> None:
        """A transaction that is asked for, and one that waits for whoever has its token."""
        host.tell(GroupJoined("group"))
        prepared = host.opened(nonce=b"once")
        host.add(prepared, TOPIC)
        host.prepare(prepared, b"token")
        checked = host.opened(10**6, check=Check("group"))
        host.add(checked, TOPIC)
        host.advance_to_question()

    def _crashes(self) -> Iterator[tuple[HostedCoordinator, int, list[Snapshot]]]:
        """Every prefix of a history: its host, how many entries are kept, and the snapshots that the disk may hold."""
        host = self.host()
        snapshots = host.keep_snapshots()
        self._write(host)
        for count in range(len(host.entries) + 1):
            yield host, count, [snapshot for at, snapshot in snapshots if 0 < at <= count]


def _observe(host: HostedCoordinator) -> tuple[object, ...]:
    """Everything that may be asked of a coordinator, without a trace."""
    host.confirm()
    machine = host.machine
    seen: list[tuple[object, ...]] = []
    for least in range(15):
        txn_id = host.given.get(least, TxnId(TC_ID, least))
        seen.append((machine.is_registered(txn_id, TOPIC), machine.is_registered(txn_id, OTHER)))
        for action in TxnAction:
            try:
                step: Step[Any] = machine.decide(EndTxn(0, txn_id, action, superuser=True), host.now_ms)
            except Refusal as refusal:
                seen.append((refusal.code,))
            else:
                seen.append((bool(step.records), any(isinstance(effect, AwaitOutcome) for effect in step.effects)))
    return machine.deadline(), machine.newest_time_ms, seen
