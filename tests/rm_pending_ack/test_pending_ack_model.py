"""The handle against plain sets of messages, with crashes at any prefix, lagging cursors, snapshots and late verdicts."""

from __future__ import annotations

import copy

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_txn.ledger.machine import MoveCursor, Redeliver, Step
from pulsar_txn.rm_pending_ack import AckCumulative, AckIndividual, AckItem, PendingAckHandle, Verified
from pulsar_txn.rm_pending_ack.testing import (
    ListedCursor,
    Message,
    Subscription,
    ack,
    ack_up_to,
    at,
    end,
    messages_of,
    messages_up_to,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

ENTRIES = 6
txn_ids = st.builds(TxnId, st.integers(0, 1), st.integers(1, 6))


@attrs.define
class Model:
    """What the records of a prefix of the log mean: messages by holder, and what is decided since the last reset."""

    held: dict[TxnId, set[Message]] = attrs.field(factory=dict)
    up_to: dict[TxnId, set[Message]] = attrs.field(factory=dict)
    settled: set[Message] = attrs.field(factory=set)
    settled_up_to: set[Message] = attrs.field(factory=set)
    ended: dict[TxnId, TxnAction] = attrs.field(factory=dict)
    watermark: dict[int, int] = attrs.field(factory=dict)
    requests: dict[TxnId, list[AckIndividual | AckCumulative]] = attrs.field(factory=dict)
    """Those with a key that open transactions took."""

    def keep(self, request: AckIndividual | AckCumulative) -> None:
        if request.key is not None:
            self.requests.setdefault(request.txn_id, []).append(request)

    def is_over(self, txn_id: TxnId) -> bool:
        return txn_id in self.ended or (txn_id not in self.held and txn_id.least <= self.watermark.get(txn_id.most, -1))

    def others(self, txn_id: TxnId) -> set[Message]:
        return set().union(*(held for other, held in self.held.items() if other != txn_id))

    def drop(self, txn_id: TxnId) -> set[Message]:
        self.up_to.pop(txn_id, None)
        self.requests.pop(txn_id, None)
        return self.held.pop(txn_id, set())


class PendingAckModel(RuleBasedStateMachine):
    @initialize(
        sizes=st.lists(st.sampled_from([0, 1, 3, 70]), min_size=ENTRIES, max_size=ENTRIES), every=st.sampled_from([1, 3, 1000])
    )
    def start(self, sizes: list[int], every: int) -> None:
        self.host = Subscription(
            lambda *names: PendingAckHandle(*names, snapshot_every=every, stored_every=1 if every == 1 else 2), sizes
        )
        self.host.participants = set()
        self.model = Model()
        self.asked = 0
        # What a seek without a record undid: it was in the cursor's durable state, whatever prefix of the log survives.
        self.undone: set[Message] = set()
        self.models = [copy.deepcopy(self.model)]  # the model after each record

    # -- what a program does

    def item(self, data: st.DataObject) -> AckItem:
        entry = data.draw(st.integers(0, ENTRIES - 1))
        size = self.host.sizes[entry]
        index_sets = st.integers(1, (1 << size) - 1) | st.integers(0, max(size - 1, 0)).map(lambda index: 1 << index)
        bits = data.draw(st.none() | index_sets) if size else None
        return (at(entry), bits, size)

    def place(self, data: st.DataObject) -> AckItem:
        entry = data.draw(st.integers(0, ENTRIES - 1))
        size = self.host.sizes[entry]
        bits = data.draw(st.none() | st.integers(1, size).map(lambda count: (1 << count) - 1)) if size else None
        return (at(entry), bits, size)

    def acked(self) -> set[Message]:
        return self.host.cursor.acked | self.model.settled | self.model.settled_up_to

    def written(self, step: object) -> None:
        """Note the model as it is after the records of a Step."""
        while len(self.models) <= len(self.host.entries):
            self.models.append(copy.deepcopy(self.model))

    def expect(self, got: Step[object] | Refusal, refusal: ServerError | None) -> bool:
        assert (got.code if isinstance(got, Refusal) else None) == refusal, got
        return refusal is None

    @rule(txn_id=txn_ids, data=st.data(), known=st.booleans())
    def ack_individual(self, txn_id: TxnId, data: st.DataObject, known: bool) -> None:
        items = [self.item(data) for _ in range(data.draw(st.integers(1, 2)))]
        model, host = self.model, self.host
        host.participants = {txn_id} if known else set()
        wanted: set[Message] = set().union(*(messages_of(host.sizes, item) for item in items))
        taken = set().union(*model.held.values(), *model.up_to.values())
        self.asked += 1
        request = ack(txn_id, *items, key=(1, self.asked) if data.draw(st.booleans()) else None)
        got = host.send(request)
        if model.is_over(txn_id) or (txn_id not in model.held and not known):
            self.expect(got, ServerError.NotAllowedError)
        elif self.expect(got, ServerError.TransactionConflict if wanted & (taken | self.acked()) else None):
            assert isinstance(got, Step)
            assert got.records
            model.held.setdefault(txn_id, set()).update(wanted)
            model.keep(request)
        self.written(got)

    @precondition(lambda self: any(self.model.requests.values()))
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """A request that was taken comes once more, or its key with a message that it does not name."""
        model = self.model
        request = data.draw(st.sampled_from([each for some in model.requests.values() for each in some]))
        got = self.host.send(request)
        assert isinstance(got, Step)
        assert not got.records, "what a key has taken is not written again"
        other = ack(request.txn_id, *(self.item(data) for _ in range(3)), key=request.key)
        if isinstance(request, AckCumulative) or {each[0] for each in other.items} != {each[0] for each in request.items}:
            self.expect(self.host.send(other), ServerError.TransactionConflict)

    @rule(txn_id=txn_ids, data=st.data(), known=st.booleans())
    def ack_cumulative(self, txn_id: TxnId, data: st.DataObject, known: bool) -> None:
        item = self.place(data)
        model, host = self.model, self.host
        host.participants = {txn_id} if known else set()
        wanted = messages_up_to(host.sizes, item)
        visibly_acked = wanted <= host.cursor.acked or wanted <= model.settled_up_to
        on_its_way = wanted <= self.acked()
        self.asked += 1
        request = ack_up_to(txn_id, item, key=(1, self.asked) if data.draw(st.booleans()) else None)
        got = host.send(request)
        is_behind = wanted <= model.up_to.get(txn_id, set()) or max(wanted) in model.held.get(txn_id, set())
        if model.is_over(txn_id) or (txn_id not in model.held and not known):
            self.expect(got, ServerError.NotAllowedError)
        elif is_behind or visibly_acked or (model.up_to and txn_id not in model.up_to) or wanted & model.others(txn_id):
            self.expect(got, ServerError.TransactionConflict)
        elif not (on_its_way and isinstance(got, Refusal)):
            self.expect(got, None)
            model.held.setdefault(txn_id, set())
            model.up_to[txn_id] = model.up_to.get(txn_id, set()) | wanted
            model.keep(request)
        self.written(got)

    @rule(txn_id=txn_ids)
    def late_verdict(self, txn_id: TxnId) -> None:
        """The coordinator's yes arrives after the end."""
        if self.model.is_over(txn_id):
            got = self.host.send(Verified(ack(txn_id, (at(0), None, self.host.sizes[0])), registered=True))
            self.expect(got, ServerError.NotAllowedError)

    @rule(txn_id=txn_ids, action=st.sampled_from(TxnAction), low_watermark=st.sampled_from([-1, -1, 0, 1, 2, 3]))
    def end_txn(self, txn_id: TxnId, action: TxnAction, low_watermark: int) -> None:
        model = self.model
        known = model.ended.get(txn_id)
        below = txn_id.least <= model.watermark.get(txn_id.most, -1)
        got = self.host.send(end(txn_id, action, low_watermark))
        if txn_id not in model.held and (below or known is not None):
            if self.expect(got, ServerError.InvalidTxnStatus if not below and known is not action else None):
                assert isinstance(got, Step)
                assert not got.records, "a repeat writes nothing"
            return
        assert isinstance(got, Step)
        settled_up_to = model.up_to.get(txn_id, set())
        held = model.drop(txn_id)
        freed = set(held) if action is TxnAction.ABORT else set()
        if action is TxnAction.COMMIT:
            model.settled |= held | settled_up_to
            model.settled_up_to |= settled_up_to
        model.ended[txn_id] = action
        if low_watermark > model.watermark.get(txn_id.most, -1):
            for stale in [other for other in model.held if other.most == txn_id.most and other.least <= low_watermark]:
                freed |= model.drop(stale)
            model.watermark[txn_id.most] = low_watermark
        redelivered = set()
        for effect in got.effects:
            if isinstance(effect, Redeliver):
                for position, bits in effect.positions:
                    redelivered |= messages_of(self.host.sizes, (position, bits, 0))
        assert redelivered == freed, "exactly what was held is delivered again"
        self.written(got)

    @rule(data=st.data())
    def plain_ack(self, data: st.DataObject) -> None:
        items = [self.item(data) for _ in range(data.draw(st.integers(0, 2)))]
        cumulative = data.draw(st.booleans())
        place = self.place(data) if cumulative else None
        model, sizes = self.model, self.host.sizes
        got = self.host.plain_ack(items, place)
        assert isinstance(got, Step)
        named: set[Message] = set().union(*(messages_of(sizes, item) for item in items))
        touched = set().union(*(held & named for held in model.held.values()))
        entries = 1 if touched else 0
        reached = messages_up_to(sizes, place) if place else set()
        passed = {txn_id for txn_id, held in model.up_to.items() if place and held <= reached}
        first = copy.deepcopy(model)
        for held in model.held.values():
            held -= named
        model.settled |= touched
        between = copy.deepcopy(model)
        if any(held & reached for held in first.held.values()) or passed:
            entries += 1
            for held in model.held.values():
                held -= reached
            for txn_id in passed:
                del model.up_to[txn_id]
            model.settled |= reached
            model.settled_up_to |= reached
        assert len(got.records) == entries, "written only where it touches something pending"
        if len(got.records) == 2:
            self.models.append(between)
        self.written(got)

    @rule(txn_id=txn_ids, data=st.data(), restarts=st.booleans())
    def ack_abort_and_ack_again(self, txn_id: TxnId, data: st.DataObject, restarts: bool) -> None:
        """Acknowledge in a transaction, abort, acknowledge the same plainly: a stock broker lost it (apache/pulsar#26616)."""
        entry = data.draw(st.integers(0, ENTRIES - 1))
        host, item = self.host, (at(entry), None, self.host.sizes[entry])
        wanted = messages_of(host.sizes, item)
        host.participants = {txn_id}
        if txn_id in self.model.held or self.model.is_over(txn_id) or isinstance(host.send(ack(txn_id, item)), Refusal):
            return
        self.model.held[txn_id] = set(wanted)
        self.written(None)
        self.end_txn(txn_id, TxnAction.ABORT, -1)
        got = host.plain_ack([item], None)
        assert isinstance(got, Step)
        assert not got.records, "nothing holds it any more, so the cursor alone has it"
        self.written(got)
        if restarts:
            host.confirm()
            host.store(len(host.changes))
            self.forget_stored()
            self.crash(data)
        assert wanted <= host.cursor.acked, "it is acknowledged for good"
        assert not wanted & host.visible(), "it does not come again"

    @rule(entry=st.integers(-1, ENTRIES - 1))
    def seek(self, entry: int) -> None:
        got = self.host.seek(entry)
        assert isinstance(got, Step)
        model = self.model
        passed = messages_up_to(self.host.sizes, (at(entry), None, 0))
        if not got.records:
            self.undone |= (model.settled | model.settled_up_to) - passed
        model.settled.clear()
        model.settled_up_to.clear()
        if not got.records:  # nothing is held there, and everything settled is in the cursor's durable state
            assert not any(held & passed for held in model.held.values())
            self.models[-1] = copy.deepcopy(model)
            return
        for held in model.held.values():
            held -= passed
        for txn_id in [txn_id for txn_id, held in model.up_to.items() if held <= passed]:
            del model.up_to[txn_id]
        self.written(got)

    # -- what a host does

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.host.confirm(data.draw(st.integers(self.host.confirmed, len(self.host.entries))))

    @rule()
    def confirm_all(self) -> None:
        self.host.confirm()

    @precondition(lambda self: len(self.host.changes) > self.host.stored)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        self.host.store(data.draw(st.integers(self.host.stored, len(self.host.changes))))
        self.forget_stored()

    def forget_stored(self) -> None:
        """A CURSOR_STORED record changes nothing of what is effectively acknowledged or held."""
        self.written(None)

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        host = self.host
        kept = data.draw(st.integers(host.confirmed, len(host.entries)))
        changes = data.draw(st.integers(host.stored, len(host.changes)))
        host.crash(kept, changes)
        del self.models[kept + 1 :]
        self.model = copy.deepcopy(self.models[kept])
        self.written(None)
        durable = ListedCursor(host.sizes)
        for change in host.changes[: host.stored]:
            durable.change(change)
        # What the cursor had stored and what the log decided, nothing else. A reset after the records that the cursor
        # stored but the log lost is one that nobody was told of.
        undone = self.undone - host.cursor.acked
        self.model.settled -= undone
        self.model.settled_up_to -= undone
        expected = durable.acked | self.model.settled
        assert host.cursor.acked == expected, (durable.acked, self.model)
        self.compare_recoveries()

    def compare_recoveries(self) -> None:
        host = self.host
        whole = PendingAckHandle("t", "s", host.cursor)
        host.replay(whole, 0)
        live = b"".join(host.machine.snapshot())
        assert b"".join(whole.snapshot()) == live, "snapshot and rest of the log give the state of the whole log"
        needed = whole.trim_before("log")
        part = PendingAckHandle("t", "s", host.cursor)
        host.replay(part, needed[1] if needed else 0)
        for entry in range(ENTRIES):
            position = at(entry)
            assert messages(host, part.pending(position), entry) <= messages(host, whole.pending(position), entry)
        assert {txn: part.cumulative_position(txn) for txn in self.model.held} == {
            txn: whole.cumulative_position(txn) for txn in self.model.held
        }
        assert moved(part, host.sizes) == moved(whole, host.sizes), "trim_before keeps what a recovery needs"

    # -- what must hold

    @invariant()
    def handle_agrees_with_itself(self) -> None:
        if hasattr(self, "host"):
            self.host.machine.check_invariants()

    @invariant()
    def nothing_held_is_visible_and_nothing_free_is_hidden(self) -> None:
        if not hasattr(self, "host"):
            return
        held = set().union(*self.model.held.values())
        visible = self.host.visible()
        assert not visible & (held | (self.model.settled - self.model.settled_up_to)), "delivered though held or decided"
        everything = set().union(*(messages_of(self.host.sizes, (at(entry), None, 0)) for entry in range(ENTRIES)))
        assert everything - held - self.acked() <= visible, "free and not delivered"

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        self.host.confirm()
        assert self.host.cursor.acked >= self.model.settled, "every decided ack reaches the cursor"
        snapshot = b"".join(self.host.machine.snapshot())
        restored = PendingAckHandle("t", "s", self.host.cursor)
        restored.restore(snapshot)
        assert b"".join(restored.snapshot()) == snapshot


def messages(host: Subscription, pending: int, entry: int) -> set[Message]:
    return messages_of(host.sizes, (at(entry), pending, 0))


def moved(handle: PendingAckHandle, sizes: list[int]) -> set[Message]:
    cursor = ListedCursor(sizes)
    for effect in handle.recovered(0).effects:
        assert isinstance(effect, MoveCursor)
        cursor.change(effect)
    return cursor.acked


TestPendingAckModel = PendingAckModel.TestCase
TestPendingAckModel.settings = settings(stateful_step_count=40, deadline=None)
