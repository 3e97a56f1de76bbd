"""How long one call of a machine takes when it has much: the longest of each kind of call, in milliseconds of CPU.

    python bench/machines/bench_machines.py [--count 100000]

Nothing here should come near 10 ms, which is what one turn of the broker's loop may take. The collector is off: its pauses
depend on the process. A dict that grows past 100,000 keys takes some milliseconds for that one insertion.
"""

# ruff: noqa: D102, D103 - rows are named by what they measure

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pulsar_txn.rm_producer import TopicRecord, TopicTransactionBuffer
from pulsar_txn.tc import EndTxn, FencingCoordinator, NewTxn
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnAction, TxnId

ResultT = TypeVar("ResultT")


class Watch:
    """The longest call of each kind, and all of them together."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, float, int]] = {}

    def __call__(self, name: str, call: Callable[[], ResultT]) -> ResultT:
        before = time.thread_time()
        result = call()
        spent = time.thread_time() - before
        longest, total, calls = self.rows.get(name, (0.0, 0.0, 0))
        self.rows[name] = max(longest, spent), total + spent, calls + 1
        return result

    def slices(self, name: str, slices: Iterator[bytes]) -> list[bytes]:
        found = []
        while (part := self(name, lambda: next(slices, None))) is not None:
            found.append(part)
        return found

    def show(self, title: str) -> None:
        print(f"\n{title}\n{'':44} {'longest ms':>10} {'all ms':>10} {'calls':>9}")
        for name, (longest, total, calls) in self.rows.items():
            print(f"{name:44} {longest * 1000:10.2f} {total * 1000:10.0f} {calls:9}")


class Applied:
    """A machine whose Steps are applied at once."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.entry = 0

    def carry_out(self, step: Any) -> Any:
        for name, record in (*step.records, *step.trailing):
            self.machine.apply(name, (1, self.entry), record)
            self.entry += 1
        return step

    def ask(self, request: Any, now_ms: int = 0) -> Any:
        return self.carry_out(self.machine.decide(request, now_ms))


def coordinator(count: int) -> None:
    watch, live = Watch(), Applied(FencingCoordinator(0))
    for number in range(count):
        watch("begin", lambda number=number: live.ask(NewTxn(None, 10**6, identity=(f"id-{number}", 1))))
    watch("begin, fencing one of its id", lambda: live.ask(NewTxn(None, 10**6, identity=("id-7", 2))))
    slices = watch("snapshot(), the call", live.machine.snapshot)
    parts = watch.slices("snapshot, a slice", slices)
    for number in range(0, count, 10):
        watch(
            "end", lambda number=number: live.ask(EndTxn(None, TxnId(0, number), TxnAction.ABORT, None, None, superuser=True))
        )
    again = Applied(FencingCoordinator(0))
    for part in parts:
        watch("restore, a slice", lambda part=part: again.machine.restore(part))
    watch("recovered", lambda: again.carry_out(again.machine.recovered(0)))
    while watch("deadline", again.machine.deadline) is not None:
        watch("expire, all are due", lambda: again.carry_out(again.machine.expire(10**7)))
    watch.show(f"coordinator, {count} open transactions of as many transactional ids, {sum(map(len, parts))} bytes")


def buffer(count: int) -> None:
    def entry(txn_id: TxnId, marker: MarkerType | None = None, low_watermark: int = -1) -> TopicRecord:
        return TopicRecord(EntryHeader("p", 0, low_watermark + 1, 0, txn_id, marker), b"")

    def marker(txn_id: TxnId, action: TxnAction) -> TopicRecord:
        return entry(txn_id, MarkerType.TXN_ABORT if action is TxnAction.ABORT else MarkerType.TXN_COMMIT)

    watch, live = Watch(), Applied(TopicTransactionBuffer("t", marker))
    live.machine.recovered(0)
    for least in range(count):
        watch(
            "first entry of a transaction", lambda least=least: live.machine.apply("topic", (1, least), entry(TxnId(0, least)))
        )
    live.entry = count
    last = TxnId(0, count)
    live.machine.apply("topic", (1, count), entry(last))
    live.entry += 1
    watch(
        "marker whose low watermark covers all",
        lambda: live.machine.apply("topic", (1, live.entry), entry(last, MarkerType.TXN_COMMIT, count - 1)),
    )
    live.entry += 1
    while watch("deadline", live.machine.deadline) is not None:
        watch("expire, the low watermark covers all", lambda: live.carry_out(live.machine.expire(0)))
    slices = watch("snapshot(), the call", live.machine.snapshot)
    parts = watch.slices("snapshot, a slice", slices)
    again = TopicTransactionBuffer("t", marker)
    for part in parts:
        watch("restore, a slice", lambda part=part: again.restore(part))
    while watch("topic trimmed, a call", lambda: again.topic_trimmed((2, 0))):
        pass
    watch.show(f"topic buffer, {count} transactions open, then aborted, {sum(map(len, parts))} bytes")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100_000)
    count = arguments.parse_args().count
    gc.disable()
    coordinator(count)
    buffer(count)


if __name__ == "__main__":
    main()
