"""Numbers that begin above all that the brokers' own coordinators gave out: for unchanged clients beside a cluster."""

from __future__ import annotations

import pytest
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import PulsarIds
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

FIRST = 1 << 40
OUT = Participant("out")


def host(first: int = FIRST) -> TcHost:
    return TcHost(3, ids=PulsarIds(first_least=first))


def watermarks(tcs: TcHost) -> dict[int, int]:
    return {each.txn_id.least: each.low_watermark for each in tcs.released if isinstance(each, TellParticipant)}


def test_the_first_number_is_the_configured_one_and_further_ones_follow() -> None:
    tcs = host()
    assert [tcs.new() for _ in range(3)] == [TxnId(3, FIRST), TxnId(3, FIRST + 1), TxnId(3, FIRST + 2)]
    with pytest.raises(Refusal):
        tcs.end(TxnId(3, 0), TxnAction.COMMIT)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_after_a_crash_numbers_go_on_and_outcomes_are_known(with_snapshot: bool) -> None:
    tcs = host()
    txn = tcs.new()
    tcs.add(txn, OUT)
    tcs.end(txn, TxnAction.COMMIT)
    tcs.done(txn)
    if with_snapshot:
        tcs.take_snapshot()
    tcs.confirm()
    tcs.crash()
    tcs.end(txn, TxnAction.COMMIT)  # a repeat
    with pytest.raises(Refusal):
        tcs.end(txn, TxnAction.ABORT)
    assert tcs.new() == TxnId(3, FIRST + 1)


def test_the_watermark_is_the_highest_number_below_which_everything_ended_everywhere() -> None:
    tcs = host()
    first, second, third = (tcs.new() for _ in range(3))
    for each in (first, second, third):
        tcs.add(each, OUT)
    tcs.end(second, TxnAction.COMMIT)
    tcs.done(second)
    tcs.end(first, TxnAction.ABORT)  # its participant has not heard of it, so it covers nothing yet
    tcs.end(third, TxnAction.COMMIT)
    assert watermarks(tcs) == {second.least: FIRST - 1, first.least: FIRST - 1, third.least: FIRST - 1}
    tcs.done(first)
    fourth = tcs.new()
    tcs.add(fourth, OUT)
    tcs.end(fourth, TxnAction.COMMIT)
    assert watermarks(tcs)[fourth.least] == second.least


def test_a_higher_first_number_of_a_later_start_forgets_nothing_and_a_lower_one_gives_nothing_twice() -> None:
    tcs = host(10)
    kept = tcs.new()
    tcs.options["ids"] = PulsarIds(first_least=FIRST)
    tcs.crash()
    assert tcs.new() == TxnId(3, FIRST)
    tcs.end(kept, TxnAction.COMMIT)
    tcs.options["ids"] = PulsarIds(first_least=5)
    tcs.crash()
    assert tcs.new() == TxnId(3, FIRST + 1)
