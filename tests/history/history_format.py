"""The format of a history: what the clients of a run asked, what they were told, and when.

A history is a folder. Each process incarnation (a worker process, the harness, a reader thread with a client of its own)
writes one file, `<process>.jsonl`, and only appends to it. A crashed process never uses its name again: the next
incarnation has a new name, for example `worker-3.1` after `worker-3.0`. One line is one JSON object:

    {"t_mono_ns": 1234, "process": "worker-3.0", "f": "send", "type": "invoke", "op": 17, "value": {...}}

* `t_mono_ns`: nanoseconds of the monotonic clock of the one machine on which all processes run. The line of an invocation
  is written before the call, the line of a completion after the answer. Within a file the time never decreases.
* `type`: `invoke`, then exactly one of `ok` (it had its effect), `fail` (only when the class of the error guarantees that
  there was no effect), `info` (everything unknown: a timeout, a lost connection). An invocation without a completion
  counts as `info`: its process was killed.
* `op`: the number of the operation within its process. It joins the completion to its invocation, so that one process may
  have several operations under way. An event is one line without `op` (see below).
* `value`: the facts. A completion repeats nothing: it adds fields to those of its invocation.

Names that values use:

* `topic` and `partition`: the topic's name without the partition, and the partition's number; -1 when it has none.
* `position`: `[ledger, entry, batch_index]`; the batch index of an unbatched message is -1.
* `txn`: a name that the workload chooses, unique in the run (`"worker-3.0/17"`), or null. It is not Pulsar's id, because
  a client may take that id late or never learn it. `id` of a completed `begin` may carry Pulsar's id.
* `payload`: the identity of a message, which is also its content (`make_payload`):
  `{producer, epoch, txn, i, n, parts, seq, inputs, crc}`. `(producer, seq)` is unique in the run. The message is number `i`
  of the `n` messages of its transaction, which go to the partitions `parts`, a list of `[topic, partition]`; without a
  transaction `i` is 0, `n` is 1. `inputs` lists the `[producer, seq]` of the messages from which a copier made it.
  `seq` rises along the sends of one producer to one partition. `crc` is the CRC-32 of the rest.
* `identity`: optional, `[kind, name, epoch]` with the kind `producer`, `consumer` or `transactional_id`: the operation acts
  as this incarnation of a fenced name. After an `open` of a higher epoch is ok, lower epochs must not succeed (K10).
  A `begin` with the identity of a transactional id says whose transaction it is: once an `open` of a higher epoch is ok, the
  transaction has ended, unless it was prepared (K18).

The operations (`FIELDS` says which fields each needs):

| f | meaning |
|---|---|
| `open`, `close` | a client, or a fenced incarnation (with `identity`), starts and ends; a killed process has no `close`. |
| | `transactional_id`: the name that it takes over; ok adds `identity`, since only the answer says the epoch |
| `subscribe` | creates a subscription or joins it: `mode` (Exclusive, Failover, Shared, Key_Shared), `initial` |
| `reader` | a reader opens at `start`: "earliest", "latest" or a position |
| `send` | a message; ok adds `position` |
| `ack` | `positions`, `kind` individual or cumulative, `txn` |
| `seek` | the subscription is moved: what was settled may come again |
| `begin`, `commit`, `abort` | of `txn`; `begin` should have `timeout_ms`; a `fail` of commit says that it is aborted, |
| | a `fail` of abort that it is committed |
| `prepare` | of `txn`: no timeout and no successor ends it from now on; its owner does, or whoever has its token |
| `status` | ok adds `status`: open, committed, aborted |
| `final_read` | after the run, a reader (field `reader`) or consumer (field `subscription`) takes everything that is there, |
| | from the first message (a reader) or until nothing more comes (a consumer). What it gets are `deliver` events with the |
| | same name between its invocation and its completion. ok means that nothing more was there |
| `last_id` | a reader asks for the last position that it may read; ok adds `position` |

Events, one line each:

| f | type | meaning |
|---|---|---|
| `deliver` | ok | a message reached the application: by `subscription` and `consumer`, or by `reader` (the others null); |
| | | `redeliveries` is the broker's count. The line is written when the call that received it has returned |
| `kill`, `heal` | info | the nemesis: `target` (the process name of a client, or any name of a server), `how`; |
| | | `heal` says that all servers work again |
| `pause` | info | the nemesis: the client `target` sleeps from now on for a while |
| `metrics` | info | `source` and `values`, numbers by name |
| `meta` | info | about the run: `seed`, `command`, `checks` (names of the checks that this run must pass, `["K1", ...]`), |
| | | `bounds` (K15: `{"txn_decided_ms", "unseen_ms", "answer_ms"}`) and `hops` |
| | | (K14: `[{"from": [topics], "to": [topics]}]`). `clients_end`: true where a lease or a successor may end what a client |
| | | that is gone or sleeps has left open, before its timeout. `prepared_end`: true where somebody (a check group) |
| | | ends prepared transactions by the time at which their timeout would have. At most one in a history |

A writer hands each line to the kernel in one write, so that a SIGKILL loses nothing but the line under way. The reader drops
a last line without its newline and says so in `History.torn`; every other line that it cannot understand is a
`HistoryError` that names file and line.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VERSION = 1

# Fields that the invocation needs, fields that its ok adds. An event has its fields in the first column.
FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    f: (frozenset(asked.split()), frozenset(added.split()))
    for f, asked, added in (
        ("open", "", ""),
        ("close", "", ""),
        ("subscribe", "topic partition subscription consumer mode initial", ""),
        ("reader", "topic partition reader start", ""),
        ("send", "topic partition producer seq txn payload", "position"),
        ("ack", "topic partition subscription consumer positions kind txn", ""),
        ("seek", "topic partition subscription", ""),
        ("begin", "txn", ""),
        ("commit", "txn", ""),
        ("abort", "txn", ""),
        ("prepare", "txn", ""),
        ("status", "txn", "status"),
        ("final_read", "topic partition", ""),
        ("last_id", "topic partition reader", "position"),
    )
}
EVENTS: dict[str, tuple[str, frozenset[str]]] = {
    f: (kind, frozenset(fields.split()))
    for f, kind, fields in (
        ("deliver", "ok", "topic partition subscription consumer reader position payload redeliveries"),
        ("kill", "info", "target how"),
        ("heal", "info", ""),
        ("pause", "info", "target"),
        ("metrics", "info", "source values"),
        ("meta", "info", ""),
    )
}
PAYLOAD_FIELDS = ("producer", "epoch", "txn", "i", "n", "parts", "seq", "inputs")
COMPLETIONS = frozenset({"ok", "fail", "info"})
PROCESS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class HistoryError(ValueError):
    """A history that cannot be read: the message names the file, the line and what is wrong with it."""


def payload_crc(payload: dict[str, Any]) -> int:
    """CRC-32 of a payload's fields without `crc` itself."""
    kept = {name: payload.get(name) for name in PAYLOAD_FIELDS}
    return zlib.crc32(json.dumps(kept, separators=(",", ":"), sort_keys=True).encode())


def make_payload(
    producer: str,
    seq: int,
    *,
    epoch: int = 0,
    txn: str | None = None,
    i: int = 0,
    n: int = 1,
    parts: Sequence[Sequence[object]] = (),
    inputs: Iterable[Sequence[object]] = (),
) -> dict[str, Any]:
    """The identity of one message, with its CRC."""
    payload: dict[str, Any] = {
        "producer": producer,
        "epoch": epoch,
        "txn": txn,
        "i": i,
        "n": n,
        "parts": [list(part) for part in parts],
        "seq": seq,
        "inputs": [list(one) for one in inputs],
    }
    payload["crc"] = payload_crc(payload)
    return payload


def encode_payload(payload: dict[str, Any], padding: int = 0) -> bytes:
    """A payload as the content of a message; `padding` blanks follow, for larger messages."""
    return json.dumps(payload, separators=(",", ":")).encode() + b" " * padding


def decode_payload(data: bytes) -> dict[str, Any]:
    """The payload in a message; ValueError for a message that another workload sent."""
    payload = json.loads(data)
    if not isinstance(payload, dict) or not {*PAYLOAD_FIELDS, "crc"} <= payload.keys():
        raise ValueError(f"this message was not sent by a workload with payload identities: {data[:200]!r}")
    return payload


class HistoryWriter:
    """The file of one process incarnation. It refuses a name that was used before."""

    def __init__(self, folder: str | Path, process: str, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        if not PROCESS_NAME.fullmatch(process):
            raise ValueError(f"the process name {process!r} is no file name: use letters, digits, '.', '_' and '-'")
        self.process = process
        self._clock = clock
        self._next = 0
        self._open: dict[int, str] = {}
        # Without a buffer each line is one write to the kernel, and outlives a SIGKILL.
        self._file = (Path(folder) / f"{process}.jsonl").open("xb", buffering=0)

    def invoke(self, f: str, **value: object) -> int:
        """Note that an operation begins; returns its number for the completion."""
        missing = FIELDS[f][0] - value.keys()
        if missing:
            raise ValueError(f"{f} needs {sorted(missing)}")
        op, self._next = self._next, self._next + 1
        self._open[op] = f
        self._write(f, "invoke", value, op)
        return op

    def ok(self, op: int, **value: object) -> None:
        """Note that the operation had its effect."""
        missing = FIELDS[self._open[op]][1] - value.keys()
        if missing:
            raise ValueError(f"ok of {self._open[op]} needs {sorted(missing)}")
        self._complete(op, "ok", value)

    def fail(self, op: int, **value: object) -> None:
        """Note that the operation had no effect and never will have one."""
        self._complete(op, "fail", value)

    def info(self, op: int, **value: object) -> None:
        """Note that nobody knows whether the operation had or will have its effect."""
        self._complete(op, "info", value)

    def event(self, f: str, **value: object) -> None:
        """Note something that has no answer: a delivery, a fault, a sample."""
        kind, fields = EVENTS[f]
        if not fields <= value.keys():
            raise ValueError(f"{f} needs {sorted(fields - value.keys())}")
        self._write(f, kind, value, None)

    def close(self) -> None:
        """Close the file. Operations without completion stay unknown."""
        self._file.close()

    def _complete(self, op: int, kind: str, value: dict[str, object]) -> None:
        self._write(self._open.pop(op), kind, value, op)

    def _write(self, f: str, kind: str, value: dict[str, object], op: int | None) -> None:
        line: dict[str, object] = {"t_mono_ns": self._clock(), "process": self.process, "f": f, "type": kind}
        if op is not None:
            line["op"] = op
        line["value"] = value
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        while data:  # the kernel may take less than all, for example when the disk fills
            data = data[self._file.write(data) :]
