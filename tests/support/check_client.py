"""A client of bare frames that is asked for outcomes, and says what the test says."""

from __future__ import annotations

from typing import Any

from raw_client import RawClient

from pulsar_txn.tc import FencingCoordinator
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId, signed64

KNOWS_CHECKS = pb.FeatureFlags(supports_checks=True)
COMMIT, ABORT, UNKNOWN = pb.CHECK_COMMIT, pb.CHECK_ABORT, pb.CHECK_UNKNOWN


class CheckClient(RawClient):
    """Announces `supports_checks`. `room`: how many questions it takes at once; None: as `OldCheckClient`."""

    features = KNOWS_CHECKS
    room: int | None = 10_000

    async def join(self, group: str = "g", tc_id: int = 0, **fields: Any) -> None:
        """TXN_GROUP."""
        says = {} if self.room is None else {"concurrency": self.room}
        await self.request("tcClientConnectRequest", tc_id=tc_id)
        await self.request("txnGroup", tc_id=tc_id, group=group, **says, **fields)

    async def leave(self, group: str = "g", tc_id: int = 0) -> None:
        """TXN_GROUP with `leave`."""
        await self.request("txnGroup", tc_id=tc_id, group=group, leave=True)

    async def begin(self, group: str | None = "g", tc_id: int = 0, timeout_ms: int = 3_000_000, **fields: Any) -> TxnId:
        """NEW_TXN of a group."""
        await self.request("tcClientConnectRequest", tc_id=tc_id)
        named = {} if group is None else {"check_group": group}
        body = await self.request("newTxn", tc_id=tc_id, txn_ttl_millis=timeout_ms, **named, **fields)
        return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))

    @property
    def questions(self) -> list[Any]:
        """TXN_CHECKs that came, and that `take` has not taken."""
        return [body for name, body in self.events if name == "txnCheck"]

    @property
    def asked(self) -> list[TxnId]:
        """Which transactions they are about."""
        return [txn_of(body) for body in self.questions]

    def take(self) -> list[Any]:
        """All questions that are there."""
        found = self.questions
        self.events = [event for event in self.events if event[0] != "txnCheck"]
        return found

    async def begins(self, txn: TxnId, group: str = "g") -> None:
        """TXN_CHECK_BEGUN."""
        await self.request("txnCheckBegun", **ids_of(txn), group=group)

    async def says(self, txn: TxnId, outcome: int, group: str = "g") -> None:
        """Begin to answer, and answer."""
        if self.room is not None:
            await self.begins(txn, group)
        self.say(txn, outcome, group)
        await self.settle()

    def say(self, txn: TxnId, outcome: int, group: str = "g") -> None:
        """TXN_CHECK_RESPONSE."""
        self.raw(command("txnCheckResponse", **ids_of(txn), group=group, outcome=outcome))

    @property
    def decided(self) -> list[tuple[TxnId, int | None, int]]:
        """What it was told of decisions: transaction, action (None: parked), cause."""
        bodies = [body for name, body in self.events if name == "txnCheckDecided"]
        return [(txn_of(each), each.txn_action if each.HasField("txn_action") else None, each.cause) for each in bodies]

    async def prepare(self, txn: TxnId, token: bytes = b"token") -> None:
        """PREPARE_TXN."""
        await self.request("prepareTxn", **ids_of(txn), token=token)

    async def end_with(self, txn: TxnId, action: TxnAction = TxnAction.COMMIT, **fields: Any) -> Any:
        """END_TXN with further fields."""
        return await self.request("endTxn", **ids_of(txn), txn_action=int(action), **fields)


class OldCheckClient(CheckClient):
    """A member of an earlier release, which does not say that it begins a check."""

    room = None


def txn_of(body: Any) -> TxnId:
    return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))


def ids_of(txn: TxnId) -> dict[str, int]:
    return {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}


def plain_coordinator(tc_id: int, **options: Any) -> Any:
    """A plug-in that asks nobody."""
    return FencingCoordinator(tc_id, **options)
