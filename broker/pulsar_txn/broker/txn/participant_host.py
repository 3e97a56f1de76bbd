"""What transaction buffers and pending-ack handles have in common: asking whether a transaction is registered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import Effect, Machine, VerifyRegistered
from pulsar_txn.ledger.protocols import Log
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Participant, TxnId

from .host import MachineHost

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class Verify(Protocol):
    """Asks the coordinator of a transaction; `answer(None)` means that it cannot be asked now."""

    def __call__(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """May answer at once."""


class ParticipantHost(MachineHost[RequestT, RecordT]):
    """Carries out VerifyRegistered; while it is under way, other requests of that transaction wait behind it."""

    uses_reserve = False
    """Whether what was verified goes on when the disk is full."""

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, Log],
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        participant: Participant,
        verify: Verify,
        verified: Callable[[Any, bool], RequestT],
    ) -> None:
        super().__init__(machine, logs, turn, on_failed)
        self.verifying: dict[TxnId, list[tuple[RequestT, bool]]] = {}
        self._participant = participant
        self._verify = verify
        self._make_verified = verified

    def submit(self, request: RequestT, *, reserve: bool = False) -> None:
        """As in MachineHost."""
        if self.verifying:
            held = self.verifying.get(getattr(request, "txn_id", None))  # type: ignore[arg-type] # None is no key there
            if held is not None:
                held.append((request, reserve))
                return
        super().submit(request, reserve=reserve)

    def perform(self, effect: Effect) -> None:
        """VerifyRegistered; hosts of one kind go on from here."""
        if type(effect) is VerifyRegistered:
            self.verifying[effect.txn_id] = []
            self._verify(effect.txn_id, self._participant, partial(self._verified, effect))
        else:
            super().perform(effect)

    def verification_ended(self, txn_id: TxnId) -> None:
        """Called when a verification is answered and everything behind it went on."""

    def _verified(self, effect: VerifyRegistered, registered: bool | None) -> None:
        held = self.verifying.pop(effect.txn_id, [])
        if registered is None:
            self._refuse(effect.request, ServerError.ServiceNotReady, f"the coordinator of {effect.txn_id} is not ready; retry")
        else:
            super().submit(self._make_verified(effect.request, registered), reserve=self.uses_reserve)
        for request, reserve in held:
            self.submit(request, reserve=reserve)
        self.verification_ended(effect.txn_id)
