"""White box (K16): what a simulation saw inside coordinators, buffers and logs, checked against S3, S9 to S11 and S15 to S18.

The input is a list of events in the order in which they happened, each a dictionary with its kind in `e`:

| e | fields | meaning |
|---|---|---|
| `joined` | txn, participant | the coordinator's record of the participant is durable |
| `decision` | txn, outcome | the decision is durable: "committed" or "aborted" |
| `told` | txn, participant, outcome | the participant hears of the outcome |
| `effect` | txn, participant, outcome | the participant's record of the outcome (a marker, a redo record) is durable |
| `ended` | txn, outcome | the coordinator's last record is written |
| `accepted` | txn, participant | a message or an acknowledgement of the transaction is accepted |
| `max_read` | topic, incarnation, position, | the readable position: `first_open` is the first message of an open |
| | confirmed, first_open | transaction or null, `confirmed` the last confirmed entry |
| `shown` | topic, incarnation, position | a message is given to a reader |
| `recovered` | log, bytes, state | a recovery of these bytes (a digest) gave this state (a digest) |
| `answered` | request, answer | a request (its content, not its number) got this answer |
| `carried_out` | request | the effect of the request happened |
| `issued` | kind, id | an id was given out |

Positions are lists or tuples of numbers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from history_reader import Op
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

Event = dict[str, Any]
Found = tuple[str, tuple[int, ...]]  # what is wrong, and the numbers of the events that show it

PROMISES = ("S3", "S9", "S10", "S11", "S15", "S16", "S17", "S18")


def k16_walk(events: Sequence[Event], promises: Collection[str] = PROMISES) -> Verdict:
    """The events keep the promises; UNKNOWN when an asked promise has no event that it could fail on."""
    bad: list[Found] = []
    lacks: list[str] = []
    for promise, (kinds, check) in _CHECKS.items():
        if promise not in promises:
            continue
        if not any(event["e"] in kinds for event in events):
            lacks.append(f"{promise}: the walk has no event of {', '.join(sorted(kinds))}")
        bad += [(f"{promise}: {what}", where) for what, where in check(events)]
    if bad:
        what, where = bad[0]
        return invalid("K16", what, [_op(events, number) for number in where], len(bad))
    if lacks:
        return unknown("K16", lacks[0])
    return valid("K16", f"{len(events)} events keep {', '.join(p for p in _CHECKS if p in promises)}")


def _op(events: Sequence[Event], number: int) -> Op:
    event = events[number]
    op = Op("walk", event["e"], "ok", {name: value for name, value in event.items() if name != "e"}, number, number)
    op.index = number
    return op


def _decision_first(events: Sequence[Event]) -> Iterator[Found]:
    decided: dict[str, tuple[int, str]] = {}
    joined: dict[str, dict[str, int]] = defaultdict(dict)
    effects: set[tuple[str, str]] = set()
    for number, event in enumerate(events):
        match event["e"]:
            case "decision":
                before = decided.setdefault(event["txn"], (number, event["outcome"]))
                if before[1] != event["outcome"]:
                    yield f"transaction {event['txn']} was decided twice, differently", (before[0], number)
            case "told":
                before = decided.get(event["txn"], (number, ""))
                if before[1] != event["outcome"]:
                    what = f"{event['participant']} heard of {event['outcome']} of {event['txn']} before that was durable"
                    yield what, tuple(dict.fromkeys((before[0], number)))
            case "joined":
                joined[event["txn"]][event["participant"]] = number
            case "effect":
                effects.add((event["txn"], event["participant"]))
            case "ended":
                for participant, since in joined[event["txn"]].items():
                    if (event["txn"], participant) not in effects:
                        yield f"{event['txn']} ended before the effect at {participant} was durable", (since, number)


def _max_read(events: Sequence[Event]) -> Iterator[Found]:
    newest: dict[tuple[str, Any], int] = {}
    for number, event in enumerate(events):
        if event["e"] not in ("max_read", "shown"):
            continue
        key = event["topic"], event["incarnation"]
        before = newest.get(key)
        position = tuple(event["position"])
        if event["e"] == "shown":
            if before is None or tuple(events[before]["position"]) < position:
                where = (number,) if before is None else (before, number)
                yield f"a message beyond the readable position of {key[0]} was shown", where
            continue
        if before is not None and tuple(events[before]["position"]) > position:
            yield f"the readable position of {key[0]} went back", (before, number)
        first_open = event["first_open"]
        if first_open is not None and position >= tuple(first_open):
            yield f"the readable position of {key[0]} includes a message of an open transaction", (number,)
        if position > tuple(event["confirmed"]):
            yield f"the readable position of {key[0]} is beyond the last confirmed entry", (number,)
        if first_open is None and position != tuple(event["confirmed"]):
            yield f"no transaction is open on {key[0]}, and the readable position is not the last confirmed entry", (number,)
        newest[key] = number


def _recoveries(events: Sequence[Event]) -> Iterator[Found]:
    known: dict[tuple[str, Any], int] = {}
    for number, event in enumerate(events):
        if event["e"] == "recovered":
            before = known.setdefault((event["log"], event["bytes"]), number)
            if events[before]["state"] != event["state"]:
                yield f"two recoveries of the same bytes of {event['log']} differ", (before, number)


def _one_marker(events: Sequence[Event]) -> Iterator[Found]:
    known: dict[tuple[str, str], int] = {}
    for number, event in enumerate(events):
        if event["e"] == "effect":
            before = known.setdefault((event["txn"], event["participant"]), number)
            if events[before]["outcome"] != event["outcome"]:
                yield f"{event['participant']} has both outcomes of {event['txn']}", (before, number)


def _late(events: Sequence[Event]) -> Iterator[Found]:
    ended: dict[tuple[str, str], int] = {}
    for number, event in enumerate(events):
        if event["e"] == "effect":
            ended.setdefault((event["txn"], event["participant"]), number)
        elif event["e"] == "accepted":
            before = ended.get((event["txn"], event["participant"]))
            if before is not None:
                yield f"{event['participant']} accepted something of {event['txn']} after its end", (before, number)


def _repeats(events: Sequence[Event]) -> Iterator[Found]:
    answers: dict[Any, int] = {}
    effects: dict[Any, int] = {}
    for number, event in enumerate(events):
        if event["e"] == "answered":
            before = answers.setdefault(event["request"], number)
            if events[before]["answer"] != event["answer"]:
                yield f"request {event['request']} got two answers", (before, number)
        elif event["e"] == "carried_out":
            before = effects.setdefault(event["request"], number)
            if before != number:
                yield f"request {event['request']} had its effect twice", (before, number)


def _ids(events: Sequence[Event]) -> Iterator[Found]:
    known: dict[tuple[str, Any], int] = {}
    for number, event in enumerate(events):
        if event["e"] == "issued":
            name = tuple(event["id"]) if isinstance(event["id"], list) else event["id"]
            before = known.setdefault((event["kind"], name), number)
            if before != number:
                yield f"the {event['kind']} {name} was given out twice", (before, number)


_CHECKS: dict[str, tuple[frozenset[str], Callable[[Sequence[Event]], Iterator[Found]]]] = {
    "S3": (frozenset({"told", "ended"}), _decision_first),
    "S9": (frozenset({"max_read"}), _max_read),
    "S10": (frozenset({"recovered"}), _recoveries),
    "S11": (frozenset({"effect"}), _one_marker),
    "S15": (frozenset({"effect"}), _late),
    "S16": (frozenset({"answered", "carried_out"}), _repeats),
    "S17": (frozenset({"recovered"}), _recoveries),
    "S18": (frozenset({"issued"}), _ids),
}
