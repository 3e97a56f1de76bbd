"""What tests script of the coordinators of a `FakeBroker`, and what they ask it about the ends that came in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_broker import SILENCE, FakeBroker

from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction
from pulsar_txn.wire.topics import ASSIGN_TOPIC

Handler = Callable[[Any, Any], Any]


def extended_broker(coordinators: int = 1) -> FakeBroker:
    """A broker whose coordinators can all that those of our broker can."""
    made = FakeBroker()
    made.partitions[ASSIGN_TOPIC] = coordinators
    made.knows_checks = made.keeps_outcomes = True
    return made


def ends(broker: FakeBroker) -> list[TxnAction]:
    """How transactions were to be ended, each time that a coordinator was told."""
    return [TxnAction(body.txn_action) for body in broker.all("endTxn")]


def refused(name: str, code: int, text: str = "no") -> Handler:
    """Answers a request of a transaction with an error. `name`: the command of the answer; `code`: of ServerError."""

    def handler(_pipe: Any, body: Any) -> Any:
        bits = {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}
        return command(name, request_id=body.request_id, error=code, message=text, **bits)

    return handler


def refused_send(text: str = "no") -> Handler:
    """Answers a message with NotAllowedError."""
    return lambda _pipe, body: command("send_error", producer_id=body[0], sequence_id=body[1], error=22, message=text)


def silence(_pipe: Any, _body: Any) -> Any:
    """Never answers."""
    return SILENCE
