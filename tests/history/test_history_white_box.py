"""What walks through states and taps on the wire must not show, one event list for each promise."""

from __future__ import annotations

import json
import random

import pytest
from check_history import main
from history_verdict import INVALID, UNKNOWN, VALID
from history_walk import PROMISES, k16_walk
from history_wire import k17_wire


def event(e, **fields):
    return {"e": e, **fields}


JOINED = event("joined", txn="x", participant="t")
DECIDED = event("decision", txn="x", outcome="committed")
TOLD = event("told", txn="x", participant="t", outcome="committed")
EFFECT = event("effect", txn="x", participant="t", outcome="committed")
ENDED = event("ended", txn="x", outcome="committed")
OTHER_EFFECT = event("effect", txn="x", participant="t", outcome="aborted")
ACCEPTED = event("accepted", txn="x", participant="t")


def readable(position, confirmed, first_open=None, incarnation=1):
    return event("max_read", topic="t", incarnation=incarnation, position=position, confirmed=confirmed, first_open=first_open)


def shown(position):
    return event("shown", topic="t", incarnation=1, position=position)


def recovered(state, digest="b"):
    return event("recovered", log="l", bytes=digest, state=state)


WALKS = [
    ("S3", VALID, [JOINED, DECIDED, TOLD, EFFECT, ENDED]),
    ("S3", INVALID, [JOINED, TOLD, DECIDED, EFFECT, ENDED]),
    ("S3", INVALID, [JOINED, DECIDED, TOLD, ENDED, EFFECT]),
    ("S3", INVALID, [DECIDED, {**TOLD, "outcome": "aborted"}]),
    ("S3", INVALID, [DECIDED, {**DECIDED, "outcome": "aborted"}, TOLD]),
    ("S3", UNKNOWN, [JOINED, DECIDED]),
    ("S9", VALID, [readable([1, 1], [1, 1]), readable([1, 1], [1, 5], [1, 2]), readable([1, 6], [1, 6]), shown([1, 6])]),
    ("S9", VALID, [readable([1, 5], [1, 5]), readable([1, 3], [1, 3], incarnation=2)]),
    ("S9", INVALID, [readable([1, 5], [1, 5]), readable([1, 3], [1, 5], [1, 4])]),
    ("S9", INVALID, [readable([1, 2], [1, 5], [1, 2])]),
    ("S9", INVALID, [readable([1, 6], [1, 5], [1, 9])]),
    ("S9", INVALID, [readable([1, 4], [1, 5])]),
    ("S9", INVALID, [readable([1, 4], [1, 5], [1, 5]), shown([1, 5])]),
    ("S9", INVALID, [shown([1, 5]), readable([1, 5], [1, 5])]),
    ("S10", VALID, [recovered("s"), recovered("s"), recovered("r", "other")]),
    ("S10", INVALID, [recovered("s"), recovered("r")]),
    ("S11", VALID, [EFFECT, EFFECT]),
    ("S11", INVALID, [EFFECT, OTHER_EFFECT]),
    ("S15", VALID, [ACCEPTED, EFFECT, {**ACCEPTED, "participant": "u"}]),
    ("S15", INVALID, [EFFECT, ACCEPTED]),
    (
        "S16",
        VALID,
        [event("answered", request="r", answer=1), event("carried_out", request="r"), event("answered", request="r", answer=1)],
    ),
    ("S16", INVALID, [event("answered", request="r", answer=1), event("answered", request="r", answer=2)]),
    ("S16", INVALID, [event("carried_out", request="r"), event("carried_out", request="r")]),
    ("S17", INVALID, [recovered("s"), recovered("r")]),
    ("S18", VALID, [event("issued", kind="txn", id=[0, 1]), event("issued", kind="ledger", id=[0, 1])]),
    ("S18", INVALID, [event("issued", kind="txn", id=[0, 1]), event("issued", kind="txn", id=[0, 1])]),
]


@pytest.mark.parametrize(("promise", "expected", "events"), WALKS, ids=[f"{n}-{walk[0]}" for n, walk in enumerate(WALKS)])
def test_a_walk_through_states(promise, expected, events):
    verdict = k16_walk(events, [promise])
    assert verdict.status == expected, str(verdict)
    if expected == INVALID:
        numbers = {op.index for op in verdict.witness}
        alone = [event for number, event in enumerate(events) if number in numbers]
        assert k16_walk(alone, [promise]).status == INVALID


def test_a_walk_needs_events_of_every_promise():
    kept = {
        "S3": [JOINED, DECIDED, TOLD],
        "S9": [readable([1, 1], [1, 1])],
        "S10": [recovered("s")],
        "S11": [EFFECT],
        "S16": [event("answered", request="r", answer=1)],
        "S18": [event("issued", kind="txn", id=1)],
    }
    assert k16_walk([e for events in kept.values() for e in events]).status == VALID
    for left_out in kept:
        events = [e for promise, found in kept.items() for e in found if promise != left_out]
        assert k16_walk(events, PROMISES).status == UNKNOWN


MESSAGE_ID = {"message_id": "m"}


def ask(kind, request_id, **fields):
    return ("to_broker", 0, kind, request_id, fields)


def tell(kind, request_id, **fields):
    return ("to_client", 0, kind, request_id, fields)


GOOD = [
    ask("CONNECT", None, client_version="v"),
    tell("CONNECTED", None, server_version="v"),
    ask("PRODUCER", 1, topic="t", producer_id=1),
    ask("NEW_TXN", 2),
    tell("NEW_TXN_RESPONSE", 2, txnid_least_bits=1, txnid_most_bits=0),
    tell("PRODUCER_SUCCESS", 1, producer_name="p", producer_ready=False),
    tell("PRODUCER_SUCCESS", 1, producer_name="p"),
    ask("SEND", None, producer_id=1, sequence_id=0),
    ask("SEND", None, producer_id=1, sequence_id=1),
    tell("SEND_RECEIPT", None, producer_id=1, sequence_id=0, **MESSAGE_ID),
    tell("SEND_RECEIPT", None, producer_id=1, sequence_id=1, **MESSAGE_ID),
    tell("CLOSE_PRODUCER", 99, producer_id=1),
    ask("END_TXN", 3, txnid_least_bits=1, txnid_most_bits=0, txn_action=0),
    tell("ERROR", 3, error=1, message="no"),
]


def test_frames_that_obey_the_protocol_are_valid():
    assert k17_wire({"one": GOOD, "two": GOOD[:2]}).status == VALID


@pytest.mark.parametrize(
    ("frame", "at", "reason"),
    [
        (tell("UNPARSED", None, error="cut"), 3, "does not parse"),
        (ask("NEW_TXN", 1), 4, "is used twice"),
        (tell("SUCCESS", 77), 4, "which nobody made"),
        (tell("SUCCESS", 2), 4, "SUCCESS answers NEW_TXN"),
        (tell("SUCCESS", None), 4, "has no request id"),
        (tell("NEW_TXN_RESPONSE", 2, txnid_least_bits=1, txnid_most_bits=0), 6, "is answered twice"),
        (tell("ERROR", 2, error=1, message="m"), 6, "is answered twice"),
        (tell("NEW_TXN_RESPONSE", 1), 4, "NEW_TXN_RESPONSE lacks"),
        (tell("SEND_RECEIPT", None, producer_id=1, sequence_id=0, **MESSAGE_ID), 12, "no send that is under way"),
        (tell("SEND_RECEIPT", None, producer_id=1, sequence_id=1, **MESSAGE_ID), 9, "overtakes"),
        (tell("MESSAGE", None, consumer_id=1), 9, "MESSAGE lacks message_id"),
        (tell("PRODUCER_SUCCESS", 1, producer_name="p"), 7, "is answered twice"),
    ],
)
def test_a_frame_that_does_not_belong_is_found(frame, at, reason):
    verdict = k17_wire({"one": [*GOOD[:at], frame, *GOOD[at:]]})
    assert verdict.status == INVALID, str(verdict)
    assert reason in verdict.reason


def test_a_lost_and_a_moved_answer_are_found_or_harmless():
    """An answer moved before its request is INVALID; one that is missing is the business of K15."""
    for seed in range(200):
        rng = random.Random(seed)
        at = rng.choice([number for number, frame in enumerate(GOOD) if frame[0] == "to_client" and frame[3] in (1, 2, 3)])
        asked = next(number for number, frame in enumerate(GOOD) if frame[0] == "to_broker" and frame[3] == GOOD[at][3])
        rest = [frame for number, frame in enumerate(GOOD) if number != at]
        assert k17_wire({"one": rest}).status == VALID
        rest.insert(rng.randint(0, asked), GOOD[at])
        assert k17_wire({"one": rest}).status == INVALID


def test_the_command_judges_walks_and_frames(tmp_path, capsys):
    (tmp_path / "broker.walk").write_text("".join(json.dumps(e) + "\n" for e in [JOINED, TOLD]))
    (tmp_path / "tap.frames").write_text("".join(json.dumps(["one", *frame]) + "\n" for frame in GOOD))
    assert main([str(tmp_path)]) == 1
    shown_text = capsys.readouterr().out
    assert "K16 INVALID: S3" in shown_text
    assert "K17 VALID" in shown_text
    (tmp_path / "tap.frames").write_text("[1,\n")
    assert main([str(tmp_path)]) == 2
