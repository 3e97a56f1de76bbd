"""Judge histories: `python tests/history/check_history.py FOLDER` prints the verdicts and exits with 1 unless all are VALID.

FOLDER holds the files of one run: histories (`*.jsonl`, see history_format), and, where a run taps frames or walks states,
`*.frames` (lines of `[connection, direction, t_ns, type, request_id, fields]`) and `*.walk` (lines of events). The meta event
of the run names the checks that it must pass; without it these are K1 to K15, and K18. `--checks K1,K3` asks for others.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from history_acks import k8_ack_settlement, k9_pending_exclusion
from history_cycles import k13_cycles
from history_facts import Facts
from history_fencing import k18_take_over
from history_format import HistoryError
from history_liveness import k15_liveness
from history_losses import k3_lost_write, k4_duplicate, k11_torn, k14_exactly_once
from history_reader import History, many_objects, read_history
from history_reads import k1_aborted_read, k2_dirty_read, k5_inconsistent_position, k6_order, k7_commit_visibility
from history_register import k10_fencing, k12_register
from history_verdict import INVALID, VALID, Verdict, unknown
from history_walk import k16_walk
from history_wire import k17_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from history_reader import Op
    from history_wire import Frame

CHECKS: dict[str, Callable[[Facts], Verdict]] = {
    "K1": k1_aborted_read,
    "K2": k2_dirty_read,
    "K3": k3_lost_write,
    "K4": k4_duplicate,
    "K5": k5_inconsistent_position,
    "K6": k6_order,
    "K7": k7_commit_visibility,
    "K8": k8_ack_settlement,
    "K9": k9_pending_exclusion,
    "K10": k10_fencing,
    "K11": k11_torn,
    "K12": k12_register,
    "K13": k13_cycles,
    "K14": k14_exactly_once,
    "K15": k15_liveness,
    "K18": k18_take_over,
}
CONTEXT_OPS = 200
# Checks that say that something is there which must not be. Their witness is made as small as it can be: without any of its
# operations there is no contradiction. The others also say that something is absent, and leaving out more proves nothing.
OF_PRESENCE = frozenset({"K1", "K4", "K6", "K9", "K10", "K13", "K15"})
SHRUNK_OPS = 200


def judge(history: History, checks: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on a history: of `checks`, or of those that its meta event names, or of all but K16 and K17."""
    asked = checks or history.meta.get("checks") or tuple(CHECKS)
    foreign = [name for name in asked if name not in CHECKS]
    if foreign:
        raise HistoryError(f"there is no check {', '.join(foreign)}; there are {', '.join(CHECKS)}")
    with many_objects():
        facts = Facts(history)
        return [_with_context(facts, _shrunk(facts, CHECKS[name](facts))) for name in asked]


def _shrunk(facts: Facts, verdict: Verdict) -> Verdict:
    """The verdict without the operations of its witness that the contradiction does not need."""
    if verdict.status != INVALID or verdict.check not in OF_PRESENCE or len(verdict.witness) > SHRUNK_OPS:
        return verdict
    meta = [op for op in facts.by_kind["meta"] if op not in verdict.witness]
    kept = list(verdict.witness)
    for op in verdict.witness:
        rest = [other for other in kept if other is not op]
        if CHECKS[verdict.check](Facts(History([*meta, *rest]))).status == INVALID:
            kept = rest
    return replace(verdict, witness=tuple(kept))


def _with_context(facts: Facts, verdict: Verdict) -> Verdict:
    """The verdict with the other operations about the transactions and messages of its witness."""
    if verdict.status != INVALID:
        return verdict
    txns, messages = set(), set()
    for op in verdict.witness:
        payload = op.value.get("payload") or {}
        txns |= {op.value.get("txn"), payload.get("txn")}
        named = [(payload.get("producer"), payload.get("seq")), *map(tuple, payload.get("inputs", ()))]
        messages |= {name for name in named if name != (None, None)}
    found: dict[int, Op] = {}
    for name in txns - {None}:
        if name in facts.txns:
            found |= {id(op): op for op in facts.txns[name].ops()}
    for op in [*facts.sends, *facts.deliveries]:
        if (op.value["payload"]["producer"], op.value["payload"]["seq"]) in messages:
            found[id(op)] = op
    for op in verdict.witness:
        found.pop(id(op), None)
    ordered = sorted(found.values(), key=lambda op: (op.start, op.index))
    return replace(verdict, context=tuple(ordered[:CONTEXT_OPS]))


def judge_folder(folder: str | Path, checks: Sequence[str] = ()) -> list[Verdict]:
    """The verdicts on everything in a folder; HistoryError for what cannot be read."""
    folder = Path(folder)
    frames = sorted(folder.glob("*.frames"))
    walks = sorted(folder.glob("*.walk"))
    verdicts: list[Verdict] = []
    wanted = [name for name in checks if name in CHECKS] if checks else []
    if list(folder.glob("*.jsonl")) or not (frames or walks):
        verdicts += judge(read_history(folder), wanted)
    if frames or "K17" in checks:
        verdicts.append(_judge_frames(frames))
    if walks or "K16" in checks:
        verdicts += [k16_walk(list(_lines(path))) for path in walks] or [unknown("K16", "there is no *.walk file")]
    return verdicts


def _judge_frames(paths: Sequence[Path]) -> Verdict:
    connections: dict[str, list[Frame]] = {}
    for path in paths:
        for connection, direction, t_ns, kind, request_id, fields in _lines(path):
            connections.setdefault(f"{path.stem}/{connection}", []).append((direction, t_ns, kind, request_id, fields))
    return k17_wire(connections)


def _lines(path: Path) -> list[Any]:
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise HistoryError(f"{path} has a line that is no JSON: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 0 when every verdict is VALID, 1 when one is not, 2 when the history cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", help="the folder of the run's files")
    parser.add_argument("--checks", default="", help="names of checks, separated by commas")
    options = parser.parse_args(arguments)
    try:
        verdicts = judge_folder(options.folder, [name for name in options.checks.split(",") if name])
    except HistoryError as error:
        print(error, file=sys.stderr)
        return 2
    for verdict in verdicts:
        print(verdict)
    bad = [verdict.check for verdict in verdicts if verdict.status != VALID]
    print(f"{len(verdicts) - len(bad)} of {len(verdicts)} checks are VALID" + (f"; not valid: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
