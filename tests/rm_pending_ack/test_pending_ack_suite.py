"""Our handle passes the public suite of pending-ack plug-ins, found as a host finds it."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from pulsar_txn.rm_pending_ack import PendingAck, PendingAckHandle
from pulsar_txn.rm_pending_ack.testing import CHECKS, Check, Subscription


@pytest.mark.seed_rows("D18", "D69")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_handle_keeps_the_promises_of_pending_acks(check: Check) -> None:
    check(PendingAckHandle)


def test_handle_is_found_by_its_entry_point() -> None:
    (found,) = entry_points(group="pulsar_txn.pending_acks", name="log")
    assert found.load() is PendingAckHandle


def test_handle_is_a_pending_ack_plug_in() -> None:
    handle: PendingAck = Subscription(PendingAckHandle, [0]).machine
    assert handle.logs == ("log",)
