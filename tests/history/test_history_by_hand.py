"""Histories made by hand: what each check must accept, must reject, and must not claim to know."""

from __future__ import annotations

import itertools

import pytest
from check_history import CHECKS, judge, main
from history_format import HistoryWriter, make_payload
from history_reader import NEVER, History, HistoryError, Op
from history_verdict import INVALID, UNKNOWN, VALID

TIMEOUT = 1_000_000  # ms: longer than any history here


def at(start, end, f, outcome="ok", process="p", /, **value):
    """An operation from start to end, in milliseconds."""
    return Op(process, f, outcome, value, start * 1_000_000, NEVER if end is None else end * 1_000_000)


def content(seq, txn=None, **rest):
    return make_payload("p", seq, txn=txn, parts=[("t", -1)], **rest)


def send(start, end, seq, txn=None, place=None, kind="ok", **rest):
    value = {} if place is None else {"position": [1, place, -1]}
    return at(
        start,
        end,
        "send",
        kind,
        topic="t",
        partition=-1,
        producer="p",
        seq=seq,
        txn=txn,
        payload=content(seq, txn, **rest),
        **value,
    )


def got(start, seq, place, txn=None, subscription=None, consumer=None, reader="r", process="q", **rest):
    value = {"subscription": subscription, "consumer": consumer, "reader": None if subscription else reader, "redeliveries": 0}
    payload = content(seq, txn, **rest)
    return at(
        start, start, "deliver", "ok", process, topic="t", partition=-1, position=[1, place, -1], payload=payload, **value
    )


def begin(start, txn, timeout_ms=TIMEOUT):
    return at(start, start + 1, "begin", txn=txn, timeout_ms=timeout_ms)


def full_read(start, end, reader="r"):
    return at(start, end, "final_read", "ok", "q", topic="t", partition=-1, reader=reader)


def drained(start, end):
    return at(start, end, "final_read", "ok", "q", topic="t", partition=-1, subscription="s")


def ack(start, end, place, txn, kind="ok", how="individual"):
    value = {"subscription": "s", "consumer": "c", "positions": [[1, place, -1]], "kind": how, "txn": txn}
    return at(start, end, "ack", kind, topic="t", partition=-1, **value)


def subscribed(start, end, consumer="c", process="q"):
    value = {"subscription": "s", "consumer": consumer, "mode": "Shared", "initial": "earliest"}
    return at(start, end, "subscribe", "ok", process, topic="t", partition=-1, **value)


def opened(start, end, epoch, kind="ok"):
    return at(start, end, "open", kind, identity=["producer", "z", epoch])


def begin_of(epoch, start, txn="x", timeout_ms=TIMEOUT):
    """A transaction of an incarnation of the transactional id "i"."""
    return at(start, start + 1, "begin", txn=txn, timeout_ms=timeout_ms, identity=["transactional_id", "i", epoch])


def took_over(start, end, epoch, process="next"):
    answer = {} if end is None else {"identity": ["transactional_id", "i", epoch]}
    return at(start, end, "open", "info" if end is None else "ok", process, transactional_id="i", **answer)


def fenced_send(start, end, seq, epoch, kind="ok"):
    found = send(start, end, seq, place=seq, kind=kind)
    found.value["identity"] = ["producer", "z", epoch]
    return found


def meta(**value):
    return at(0, 0, "meta", "info", **value)


SENT = [begin(0, "x"), send(2, 3, 1, "x", 5)]
ABORTED = [*SENT, at(4, 5, "abort", txn="x")]
COMMITTED = [*SENT, at(4, 5, "commit", txn="x")]
TWO = [begin(0, "x"), send(2, 3, 1, "x", 5, n=2), send(3, 4, 2, "x", 6, i=1, n=2)]
OLDER = [begin_of(1, 0), send(2, 3, 1, "x", 5)]
PREPARED = [*OLDER, at(4, 5, "prepare", txn="x")]
BOTH_ACK = [begin(0, "x"), begin(0, "y"), ack(2, 3, 7, "x")]

CASES = {
    # K1: aborted read
    ("K1", "nothing aborted is delivered", VALID): [*ABORTED, send(6, 7, 2, place=6), got(8, 2, 6)],
    ("K1", "delivered, then aborted", INVALID): [*ABORTED, got(3, 1, 5, "x")],
    ("K1", "a commit that failed says aborted", INVALID): [*SENT, at(4, 5, "commit", "fail", txn="x"), got(9, 1, 5, "x")],
    ("K1", "an unknown commit may have committed", UNKNOWN): [*SENT, at(4, None, "commit", "info", txn="x"), got(9, 1, 5, "x")],
    ("K1", "nothing was delivered", UNKNOWN): ABORTED,
    # K2: dirty read
    ("K2", "delivered while the commit is under way", VALID): [*SENT, at(4, 9, "commit", txn="x"), got(5, 1, 5, "x")],
    ("K2", "delivered at the stamp of the commit", VALID): [*SENT, at(4, 9, "commit", txn="x"), got(4, 1, 5, "x")],
    ("K2", "delivered before the commit was asked for", INVALID): [*SENT, at(4, 5, "commit", txn="x"), got(3, 1, 5, "x")],
    ("K2", "delivered, and nobody asked for a commit", INVALID): [*SENT, got(5, 1, 5, "x")],
    ("K2", "only the second request may have arrived", VALID): [
        *SENT,
        at(4, None, "commit", "info", txn="x"),
        at(8, 9, "commit", txn="x"),
        got(5, 1, 5, "x"),
    ],
    ("K2", "no transactions", UNKNOWN): [send(1, 2, 1, place=5), got(3, 1, 5)],
    # K3: lost write
    ("K3", "a confirmed message is read", VALID): [send(1, 2, 1, place=5), full_read(3, 6), got(4, 1, 5)],
    ("K3", "a confirmed message is not read", INVALID): [send(1, 2, 1, place=5), full_read(3, 6)],
    ("K3", "a failed and an unknown send need not be there", VALID): [
        send(1, 2, 1, place=5),
        send(3, 4, 2, kind="fail"),
        send(5, None, 3, kind="info"),
        full_read(6, 9),
        got(7, 1, 5),
    ],
    ("K3", "there is no full read", UNKNOWN): [send(1, 2, 1, place=5), got(4, 1, 5)],
    ("K3", "the full read did not finish", UNKNOWN): [
        send(1, 2, 1, place=5),
        at(3, None, "final_read", "info", topic="t", partition=-1, reader="r"),
    ],
    ("K3", "the full read began too early", UNKNOWN): [send(1, 4, 1, place=5), full_read(3, 6)],
    ("K3", "an open transaction may hide it", UNKNOWN): [*SENT, send(4, 5, 2, place=6), full_read(7, 8)],
    ("K3", "an open transaction hides nothing before it", INVALID): [*SENT, send(4, 5, 2, place=4), full_read(7, 8)],
    ("K3", "the transaction before it timed out long ago", INVALID): [
        begin(0, "x", 1),
        send(2, 3, 1, "x", 5),
        send(4, 5, 2, place=6),
        full_read(9000, 9001),
    ],
    ("K3", "a server was healed shortly before, the timeout may be late", UNKNOWN): [
        begin(0, "x", 1),
        send(2, 3, 1, "x", 5),
        send(4, 5, 2, place=6),
        at(8000, 8000, "heal", "info"),
        full_read(9000, 9001),
    ],
    ("K3", "a reader passed it", INVALID): [
        at(0, 1, "reader", "ok", "q", topic="t", partition=-1, reader="r", start="earliest"),
        send(1, 2, 1, place=5),
        send(3, 4, 2, place=6),
        got(5, 2, 6),
        full_read(6, 9, "other"),
        got(7, 1, 5, reader="other"),
        got(8, 2, 6, reader="other"),
    ],
    ("K3", "a reader that begins later need not see it", VALID): [
        at(0, 1, "reader", "ok", "q", topic="t", partition=-1, reader="r", start=[1, 6, -1]),
        send(1, 2, 1, place=5),
        send(3, 4, 2, place=6),
        got(5, 2, 6),
        full_read(6, 9, "other"),
        got(7, 1, 5, reader="other"),
        got(8, 2, 6, reader="other"),
    ],
    ("K3", "a drained subscription never got it", INVALID): [
        subscribed(0, 1),
        send(1, 2, 1, place=5),
        full_read(6, 9),
        got(7, 1, 5),
        drained(10, 11),
    ],
    # K4: duplicate
    ("K4", "delivered twice from one position", VALID): [send(1, 2, 1, place=5), got(3, 1, 5), got(4, 1, 5, reader="o")],
    ("K4", "at two positions", INVALID): [send(1, 2, 1, place=5), got(3, 1, 6)],
    ("K4", "the run allows it", VALID): [meta(duplicates_allowed=["t"]), send(1, 2, 1, place=5), got(3, 1, 6)],
    ("K4", "the run allows it, but not in transactions", INVALID): [
        meta(duplicates_allowed=["t"]),
        send(1, 2, 1, "x", place=5),
        got(3, 1, 6, "x"),
    ],
    ("K4", "it waited in the client since before the commit", VALID): [
        begin(0, "x"),
        subscribed(0, 1),
        ack(2, 3, 5, "x"),
        at(4, 5, "commit", txn="x"),
        got(6, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "to a consumer that came after the commit", INVALID): [
        begin(0, "x"),
        ack(2, 3, 5, "x"),
        at(4, 5, "commit", txn="x"),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "after a cumulative acknowledgement of a later one", INVALID): [
        begin(0, "x"),
        ack(2, 3, 9, "x", how="cumulative"),
        at(4, 5, "commit", txn="x"),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "after a cumulative acknowledgement of an earlier one", VALID): [
        begin(0, "x"),
        ack(2, 3, 4, "x", how="cumulative"),
        at(4, 5, "commit", txn="x"),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "the subscription was moved", VALID): [
        begin(0, "x"),
        ack(2, 3, 5, "x"),
        at(4, 5, "commit", txn="x"),
        at(5, 6, "seek", topic="t", partition=-1, subscription="s"),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "after a plain acknowledgement that was answered", INVALID): [
        ack(2, 3, 5, None),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "after a plain acknowledgement of what an aborted transaction had acknowledged", INVALID): [
        begin(0, "x"),
        ack(2, 3, 5, "x"),
        at(4, 5, "abort", txn="x"),
        ack(6, 7, 5, None),
        subscribed(8, 9),
        got(10, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "before the plain acknowledgement was answered", VALID): [
        ack(2, 7, 5, None),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    ("K4", "after a plain acknowledgement that nobody answered", VALID): [
        ack(2, None, 5, None, "info"),
        subscribed(6, 7),
        got(8, 1, 5, subscription="s", consumer="c"),
    ],
    # K5: one payload at a position
    ("K5", "as it was sent", VALID): [send(1, 2, 1, place=5), got(3, 1, 5)],
    ("K5", "two payloads", INVALID): [send(1, 2, 1, place=5), send(3, 4, 2), got(5, 2, 5)],
    ("K5", "changed on its way", INVALID): [send(1, 2, 1, place=5), got(3, 1, 5, n=7)],
    ("K5", "nobody sent it", INVALID): [got(3, 1, 5)],
    ("K5", "nothing was delivered", UNKNOWN): [send(1, 2, 1, place=5)],
    # K6: order
    ("K6", "in order", VALID): [send(1, 2, 1, place=5), send(1, 2, 2, place=6)],
    ("K6", "not in order", INVALID): [send(1, 2, 1, place=6), send(3, 4, 2, place=5)],
    ("K6", "the reader went back", INVALID): [
        send(1, 2, 1, place=5),
        send(3, 4, 2, place=6),
        got(5, 2, 6),
        got(6, 1, 5),
    ],
    ("K6", "one message", UNKNOWN): [send(1, 2, 1, place=6)],
    # K7: visible after the commit
    ("K7", "seen", VALID): [*COMMITTED, full_read(6, 8), got(7, 1, 5, "x")],
    ("K7", "not seen", INVALID): [*COMMITTED, full_read(6, 8)],
    ("K7", "the read began at the stamp of the answer", UNKNOWN): [*COMMITTED, full_read(5, 8)],
    ("K7", "an older transaction is open", UNKNOWN): [begin(0, "o"), send(1, 2, 9, "o", 4), *COMMITTED, full_read(6, 8)],
    ("K7", "a younger transaction is open", INVALID): [begin(0, "o"), send(1, 2, 9, "o", 6), *COMMITTED, full_read(6, 8)],
    ("K7", "the position of an open one is not known", UNKNOWN): [
        begin(0, "o"),
        send(1, None, 9, "o", kind="info"),
        *COMMITTED,
        full_read(6, 8),
    ],
    ("K7", "an open one was sent after it", INVALID): [
        begin(0, "o"),
        *COMMITTED,
        send(4, None, 9, "o", kind="info"),
        full_read(6, 8),
    ],
    ("K7", "the last position went back", INVALID): [
        at(1, 2, "last_id", topic="t", partition=-1, reader="r", position=[1, 5, -1]),
        at(3, 4, "last_id", topic="t", partition=-1, reader="r", position=[1, 4, -1]),
    ],
    ("K7", "the last position went back over a restart", UNKNOWN): [
        at(1, 2, "last_id", topic="t", partition=-1, reader="r", position=[1, 5, -1]),
        at(3, 3, "kill", "info", target="broker", how="SIGKILL"),
        at(3, 4, "last_id", topic="t", partition=-1, reader="r", position=[1, 4, -1]),
    ],
    # K8: settlement
    ("K8", "settled once", VALID): [*BOTH_ACK, at(4, 5, "commit", txn="x"), drained(6, 7)],
    ("K8", "both commit", INVALID): [*BOTH_ACK, at(4, 5, "commit", txn="x"), ack(6, 7, 7, "y"), at(8, 9, "commit", txn="y")],
    ("K8", "the second is refused", VALID): [
        *BOTH_ACK,
        at(4, 5, "commit", txn="x"),
        ack(6, 7, 7, "y", "fail"),
        at(8, 9, "commit", txn="y"),
        drained(10, 11),
    ],
    ("K8", "whether the second was refused is not known", VALID): [
        *BOTH_ACK,
        at(4, 5, "commit", txn="x"),
        ack(6, 7, 7, "y", "info"),
        at(8, 9, "commit", txn="y"),
        drained(10, 11),
    ],
    ("K8", "aborted, and it does not come back", INVALID): [*BOTH_ACK, at(4, 5, "abort", txn="x"), drained(6, 7)],
    ("K8", "aborted, and it comes back", UNKNOWN): [
        *BOTH_ACK,
        at(4, 5, "abort", txn="x"),
        drained(6, 8),
        got(7, 1, 7, subscription="s", consumer="c"),
    ],
    ("K8", "aborted, but acknowledged without a transaction", UNKNOWN): [
        *BOTH_ACK,
        at(4, 5, "abort", txn="x"),
        ack(5, 6, 7, None, "info"),
        drained(6, 8),
    ],
    ("K8", "nothing was drained", UNKNOWN): [*BOTH_ACK, at(4, 5, "commit", txn="x")],
    # K9: pending exclusion
    ("K9", "one holds it", VALID): [*BOTH_ACK, ack(4, 5, 7, "y", "fail"), at(6, 7, "commit", txn="x")],
    ("K9", "two hold it", INVALID): [*BOTH_ACK, ack(4, 5, 7, "y"), at(6, 7, "commit", txn="x")],
    ("K9", "one takes it twice", INVALID): [*BOTH_ACK, ack(4, 5, 7, "x"), at(6, 7, "commit", txn="x")],
    ("K9", "the second time was refused", VALID): [*BOTH_ACK, ack(4, 5, 7, "x", "fail"), at(6, 7, "commit", txn="x")],
    ("K9", "whether the second time was refused is not known", VALID): [*BOTH_ACK, ack(4, 5, 7, "x", "info")],
    ("K9", "two at the same time", INVALID): [*BOTH_ACK, ack(2, 4, 7, "y"), at(6, 7, "commit", txn="x")],
    ("K9", "the first may have timed out", VALID): [
        begin(0, "x", 10),
        begin(0, "y"),
        ack(2, 3, 7, "x"),
        ack(11, 12, 7, "y"),
        at(16, 17, "commit", "fail", txn="x"),
    ],
    ("K9", "the client of the first was gone, and leases end what it left", VALID): [
        meta(clients_end=True),
        *BOTH_ACK,
        at(4, 4, "kill", "info", "nemesis", target="p", how="SIGKILL"),
        ack(5, 6, 7, "y"),
    ],
    ("K9", "the client of the first slept, and leases end what it left", VALID): [
        meta(clients_end=True),
        *BOTH_ACK,
        at(4, 4, "pause", "info", "nemesis", target="p"),
        ack(5, 6, 7, "y"),
    ],
    ("K9", "the client of the first was gone, and nothing ends what it left", INVALID): [
        *BOTH_ACK,
        at(4, 4, "kill", "info", "nemesis", target="p", how="SIGKILL"),
        ack(5, 6, 7, "y"),
    ],
    ("K9", "another client was gone", INVALID): [
        meta(clients_end=True),
        *BOTH_ACK,
        at(4, 4, "kill", "info", "nemesis", target="q", how="SIGKILL"),
        ack(5, 6, 7, "y"),
    ],
    ("K9", "the client of the first had slept before", INVALID): [
        meta(clients_end=True),
        at(-1, -1, "pause", "info", "nemesis", target="p"),
        *BOTH_ACK,
        ack(5, 6, 7, "y"),
    ],
    ("K9", "it was gone after the second had it", INVALID): [
        meta(clients_end=True),
        *BOTH_ACK,
        ack(5, 6, 7, "y"),
        at(8, 8, "kill", "info", "nemesis", target="p", how="SIGKILL"),
    ],
    ("K9", "the first was being ended", VALID): [*BOTH_ACK, at(3, 9, "abort", txn="x"), ack(4, 5, 7, "y")],
    ("K9", "a plain acknowledgement takes it out", VALID): [
        *BOTH_ACK,
        ack(4, 5, 7, None),
        ack(6, 7, 7, "y"),
        at(9, 9, "abort", txn="x"),
    ],
    ("K9", "given to a new consumer", INVALID): [
        *BOTH_ACK,
        subscribed(4, 5, "n"),
        got(6, 1, 7, subscription="s", consumer="n"),
    ],
    ("K9", "it waited in another consumer", VALID): [
        subscribed(0, 1, "n"),
        *BOTH_ACK,
        got(6, 1, 7, subscription="s", consumer="n"),
    ],
    ("K9", "no timeouts are known", UNKNOWN): [at(0, 1, "begin", txn="x"), ack(2, 3, 7, "x")],
    # K10: fencing
    ("K10", "the new one takes over", VALID): [
        opened(1, 2, 1),
        opened(3, 4, 2),
        fenced_send(5, 6, 1, 2),
        fenced_send(5, 6, 2, 1, "fail"),
    ],
    ("K10", "the old one succeeds later", INVALID): [opened(1, 2, 1), opened(3, 4, 2), fenced_send(5, 6, 1, 1)],
    ("K10", "the old one was under way", VALID): [opened(1, 2, 1), opened(3, 5, 2), fenced_send(5, 6, 1, 1)],
    ("K10", "the takeover failed", VALID): [opened(1, 2, 1), opened(3, 4, 2, "info"), fenced_send(5, 6, 1, 1)],
    ("K10", "one epoch", UNKNOWN): [opened(1, 2, 1), fenced_send(5, 6, 1, 1)],
    # K11: torn
    ("K11", "whole", VALID): [
        *TWO,
        at(5, 6, "commit", txn="x"),
        full_read(7, 9),
        got(8, 1, 5, "x", n=2),
        got(8, 2, 6, "x", i=1, n=2),
    ],
    ("K11", "half", INVALID): [*TWO, at(5, 6, "commit", txn="x"), full_read(7, 9), got(8, 1, 5, "x", n=2)],
    ("K11", "a failed send was committed all the same", INVALID): [
        begin(0, "x"),
        send(2, 3, 1, "x", 5, n=2),
        send(3, 4, 2, "x", kind="fail", i=1, n=2),
        at(5, 6, "commit", txn="x"),
        full_read(7, 9),
        got(8, 1, 5, "x", n=2),
    ],
    ("K11", "aborted and there", INVALID): [*TWO, at(5, 6, "abort", txn="x"), full_read(7, 9), got(8, 1, 5, "x", n=2)],
    ("K11", "aborted and not there", VALID): [*TWO, at(5, 6, "abort", txn="x"), full_read(7, 9)],
    ("K11", "unknown and half, long after", INVALID): [
        begin(0, "x", 1),
        *TWO[1:],
        at(5, None, "commit", "info", txn="x"),
        full_read(9000, 9009),
        got(9001, 1, 5, "x", n=2),
    ],
    ("K11", "unknown and half, at once", UNKNOWN): [
        *TWO,
        at(5, None, "commit", "info", txn="x"),
        full_read(6, 9),
        got(7, 1, 5, "x", n=2),
    ],
    ("K11", "unknown and not there", VALID): [*TWO, at(5, None, "commit", "info", txn="x"), full_read(6, 9)],
    ("K11", "no full read", UNKNOWN): [*TWO, at(5, 6, "commit", txn="x")],
    # K12: one register
    ("K12", "repeats get the first answer", VALID): [
        *COMMITTED,
        at(6, 7, "commit", txn="x"),
        at(8, 9, "abort", "fail", txn="x"),
    ],
    ("K12", "both succeed", INVALID): [*COMMITTED, at(6, 7, "abort", txn="x")],
    ("K12", "both fail", INVALID): [*SENT, at(4, 5, "commit", "fail", txn="x"), at(6, 7, "abort", "fail", txn="x")],
    ("K12", "the client aborts instead of committing", VALID): [
        *SENT,
        at(4, 5, "commit", "fail", txn="x"),
        at(6, 7, "status", txn="x", status="aborted"),
    ],
    ("K12", "committed after a commit that failed", INVALID): [
        *SENT,
        at(4, 5, "commit", "fail", txn="x"),
        at(6, 7, "commit", txn="x"),
    ],
    ("K12", "open after the commit", INVALID): [*COMMITTED, at(6, 7, "status", txn="x", status="open")],
    ("K12", "open while the commit is under way", VALID): [
        *SENT,
        at(4, 9, "commit", txn="x"),
        at(5, 6, "status", txn="x", status="open"),
    ],
    ("K12", "committed, then open, while it is under way", INVALID): [
        *SENT,
        at(4, 9, "commit", txn="x"),
        at(5, 6, "status", txn="x", status="committed"),
        at(7, 8, "status", txn="x", status="open"),
    ],
    ("K12", "an unknown commit had its effect late", VALID): [
        *SENT,
        at(4, None, "commit", "info", txn="x"),
        at(5, 6, "status", txn="x", status="open"),
        at(7, 8, "status", txn="x", status="committed"),
    ],
    ("K12", "aborted before the timeout, by nobody", INVALID): [*SENT, at(5, 6, "status", txn="x", status="aborted")],
    ("K12", "aborted by the timeout", VALID): [begin(0, "x", 3), at(5, 6, "status", txn="x", status="aborted")],
    ("K12", "nobody asked", UNKNOWN): SENT,
    # K13: cycles
    ("K13", "a copy of a copy", VALID): [
        send(1, 2, 1, "x", 1),
        send(3, 4, 2, "y", 2, inputs=[("p", 1)]),
        send(5, 6, 3, "z", 3, inputs=[("p", 2)]),
    ],
    ("K13", "round", INVALID): [
        send(1, 2, 1, "x", 1, inputs=[("p", 3)]),
        send(3, 4, 2, "y", 2, inputs=[("p", 1)]),
        send(5, 6, 3, "z", 3, inputs=[("p", 2)]),
    ],
    ("K13", "a transaction that reads its own message", INVALID): [
        send(1, 2, 1, "x", 1),
        send(3, 4, 2, "x", 2, inputs=[("p", 1)]),
    ],
    ("K13", "no inputs", UNKNOWN): [send(1, 2, 1, "x", 1)],
    # K15: liveness
    ("K15", "answered in time", VALID): [meta(bounds={"answer_ms": 10}), begin(0, "x")],
    ("K15", "answered late", INVALID): [meta(bounds={"answer_ms": 10}), at(0, 11, "begin", txn="x")],
    ("K15", "answered late, but in time after the heal", VALID): [
        meta(bounds={"answer_ms": 10}),
        at(0, 11, "begin", txn="x"),
        at(1, 1, "kill", "info", target="broker", how="SIGKILL"),
        at(3, 3, "heal", "info"),
    ],
    ("K15", "answered late, because its client slept", VALID): [
        meta(bounds={"answer_ms": 10}),
        at(0, 11, "begin", txn="x"),
        at(1, 1, "pause", "info", "nemesis", target="p"),
    ],
    ("K15", "answered late, after its client had slept", INVALID): [
        meta(bounds={"answer_ms": 10}),
        at(0, 0, "pause", "info", "nemesis", target="p"),
        at(1, 12, "begin", txn="x"),
    ],
    ("K15", "never answered", INVALID): [meta(bounds={"answer_ms": 10}), at(0, None, "begin", "info", txn="x"), begin(20, "y")],
    ("K15", "never answered, because it was killed", VALID): [
        meta(bounds={"answer_ms": 10}),
        at(0, None, "begin", "info", "k", txn="x"),
        at(2, 2, "kill", "info", target="k", how="SIGKILL"),
        begin(20, "y"),
    ],
    ("K15", "open after its timeout", INVALID): [
        meta(bounds={"txn_decided_ms": 10}),
        begin(0, "x", 5),
        at(17, 18, "status", txn="x", status="open"),
    ],
    ("K15", "open shortly after its timeout", VALID): [
        meta(bounds={"txn_decided_ms": 10}),
        begin(0, "x", 5),
        at(15, 18, "status", txn="x", status="open"),
    ],
    ("K15", "prepared, and open after its timeout", VALID): [
        meta(bounds={"txn_decided_ms": 10}),
        begin(0, "x", 5),
        at(2, 3, "prepare", txn="x"),
        at(17, 18, "status", txn="x", status="open"),
    ],
    ("K15", "no samples", UNKNOWN): [meta(bounds={"metrics": {"rss": {"max": 1}}}), begin(0, "x")],
    ("K15", "no bounds", UNKNOWN): [begin(0, "x")],
    # K18: take-overs of a transactional id
    ("K18", "nobody has a successor", UNKNOWN): [*OLDER, took_over(-5, -4, 1), at(8, 9, "commit", txn="x")],
    ("K18", "the predecessor is gone", VALID): [*OLDER, took_over(6, 7, 2), full_read(8, 9)],
    ("K18", "what the zombie asks for later is refused, or nobody knows", VALID): [
        *OLDER,
        took_over(6, 7, 2),
        send(8, 9, 2, "x", kind="fail"),
        ack(8, 9, 7, "x", "info"),
        at(10, 11, "prepare", "info", txn="x"),
        at(12, 13, "commit", "fail", txn="x"),
        at(14, 15, "status", txn="x", status="aborted"),
    ],
    ("K18", "a zombie's send is stored", INVALID): [*OLDER, took_over(6, 7, 2), send(8, 9, 2, "x", 6)],
    ("K18", "a send that was under way is answered later", VALID): [*OLDER, took_over(6, 7, 2), send(6, 9, 2, "x", 6)],
    ("K18", "a send at the stamp of the answer", VALID): [*OLDER, took_over(6, 7, 2), send(7, 9, 2, "x", 6)],
    ("K18", "a zombie's acknowledgement is taken", INVALID): [*OLDER, took_over(6, 7, 2), ack(8, 9, 7, "x")],
    ("K18", "a zombie commits", INVALID): [*OLDER, took_over(6, 7, 2), at(8, 9, "commit", txn="x")],
    ("K18", "a zombie commits again, and the first time may have counted", VALID): [
        *OLDER,
        at(4, None, "commit", "info", txn="x"),
        took_over(6, 7, 2),
        at(8, 9, "commit", txn="x"),
    ],
    ("K18", "a zombie prepares", INVALID): [*OLDER, took_over(6, 7, 2), at(8, 9, "prepare", txn="x")],
    ("K18", "a zombie aborts what was aborted", VALID): [*OLDER, took_over(6, 7, 2), at(8, 9, "abort", txn="x")],
    ("K18", "it is open after the take-over", INVALID): [
        *OLDER,
        took_over(6, 7, 2),
        at(8, 9, "status", txn="x", status="open"),
    ],
    ("K18", "it is open while the take-over is under way", VALID): [
        *OLDER,
        took_over(4, 9, 2),
        at(5, 6, "status", txn="x", status="open"),
    ],
    ("K18", "the take-over was not answered", UNKNOWN): [*OLDER, took_over(6, None, 2), at(8, 9, "commit", txn="x")],
    ("K18", "an older epoch is opened late", UNKNOWN): [begin_of(2, 0), took_over(6, 7, 1), at(8, 9, "commit", txn="x")],
    ("K18", "the same epoch goes on", UNKNOWN): [begin_of(2, 8), took_over(6, 7, 2), at(10, 11, "commit", txn="x")],
    ("K18", "another id is taken over", UNKNOWN): [
        *OLDER,
        at(6, 7, "open", transactional_id="j", identity=["transactional_id", "j", 2]),
        at(8, 9, "commit", txn="x"),
    ],
    ("K18", "the commit was asked for before, and is answered later", VALID): [
        *OLDER,
        at(6, 9, "commit", txn="x"),
        took_over(7, 8, 2),
        full_read(10, 12),
        got(11, 1, 5, "x"),
    ],
    ("K18", "the commit was asked for during the take-over, and counts", VALID): [
        *OLDER,
        took_over(4, 9, 2),
        at(6, None, "commit", "info", txn="x"),
        got(10, 1, 5, "x"),
    ],
    ("K18", "the commit was asked for later, and counts", INVALID): [
        *OLDER,
        took_over(6, 7, 2),
        at(8, None, "commit", "info", txn="x"),
        got(10, 1, 5, "x"),
    ],
    ("K18", "somebody says that it is committed, and nobody had asked for that", INVALID): [
        *OLDER,
        took_over(6, 7, 2),
        at(8, 9, "abort", "fail", txn="x"),
    ],
    ("K18", "it is shown only after a while", INVALID): [
        *OLDER,
        at(4, None, "commit", "info", txn="x"),
        took_over(6, 7, 2),
        full_read(8, 9, "early"),
        full_read(10, 12),
        got(11, 1, 5, "x"),
    ],
    ("K18", "a read during the take-over lacks it", VALID): [
        *OLDER,
        at(4, None, "commit", "info", txn="x"),
        took_over(6, 9, 2),
        full_read(7, 8, "early"),
        full_read(10, 12),
        got(11, 1, 5, "x"),
    ],
    ("K18", "another open transaction hides it for a while", VALID): [
        begin(0, "o"),
        send(0, 1, 9, "o", 4),
        *OLDER,
        at(4, None, "commit", "info", txn="x"),
        took_over(6, 7, 2),
        full_read(8, 9, "early"),
        at(9, 10, "abort", txn="o"),
        full_read(10, 12),
        got(11, 1, 5, "x"),
    ],
    ("K18", "it is shown, and then no more", INVALID): [
        *OLDER,
        at(4, None, "commit", "info", txn="x"),
        took_over(6, 7, 2),
        full_read(8, 10),
        got(9, 1, 5, "x"),
        full_read(11, 12, "late"),
    ],
    ("K18", "what was prepared is committed later by its token", UNKNOWN): [
        *PREPARED,
        took_over(6, 7, 2),
        full_read(8, 9, "early"),
        at(10, 11, "commit", txn="x"),
        full_read(12, 14),
        got(13, 1, 5, "x"),
    ],
    ("K18", "what may have been prepared is spared too", UNKNOWN): [
        *OLDER,
        at(4, None, "prepare", "info", txn="x"),
        took_over(6, 7, 2),
        at(10, 11, "commit", txn="x"),
    ],
    ("K18", "what was not prepared is not spared", INVALID): [
        *OLDER,
        at(4, 5, "prepare", "fail", txn="x"),
        took_over(6, 7, 2),
        at(10, 11, "commit", txn="x"),
    ],
    # ... and what the others make of them
    ("K1", "aborted by a successor", INVALID): [*OLDER, took_over(6, 7, 2), got(8, 1, 5, "x")],
    ("K3", "what a predecessor had open hides nothing", INVALID): [
        *OLDER,
        send(4, 5, 2, place=6),
        took_over(6, 7, 2),
        full_read(8, 9),
    ],
    ("K3", "what a predecessor has prepared hides what follows", UNKNOWN): [
        begin_of(1, 0, timeout_ms=1),
        *PREPARED[1:],
        send(4, 5, 2, place=6),
        took_over(6, 7, 2),
        full_read(9000, 9001),
    ],
    ("K3", "its check group has ended it since", INVALID): [
        meta(prepared_end=True),
        begin_of(1, 0, timeout_ms=1),
        *PREPARED[1:],
        send(4, 5, 2, place=6),
        took_over(6, 7, 2),
        full_read(9000, 9001),
    ],
    ("K8", "what a predecessor held does not come back", INVALID): [
        begin_of(1, 0),
        ack(2, 3, 7, "x"),
        took_over(6, 7, 2),
        drained(8, 9),
    ],
    ("K9", "a successor ends what its predecessor held", VALID): [
        begin_of(1, 0),
        begin(0, "y"),
        ack(2, 3, 7, "x"),
        took_over(4, 5, 2),
        ack(6, 7, 7, "y"),
    ],
    ("K9", "a successor that was not answered may have ended it", VALID): [
        begin_of(1, 0),
        begin(0, "y"),
        ack(2, 3, 7, "x"),
        took_over(4, None, 2),
        ack(6, 7, 7, "y"),
    ],
    ("K9", "its successor came later", INVALID): [
        begin_of(1, 0),
        begin(0, "y"),
        ack(2, 3, 7, "x"),
        ack(6, 7, 7, "y"),
        took_over(8, 9, 2),
    ],
    ("K11", "half of what a predecessor had open is there", INVALID): [
        begin_of(1, 0),
        *TWO[1:],
        took_over(6, 7, 2),
        full_read(8, 10),
        got(9, 1, 5, "x", n=2),
    ],
    ("K12", "aborted by a successor before the timeout", VALID): [
        *OLDER,
        took_over(4, 7, 2),
        at(5, 6, "status", txn="x", status="aborted"),
    ],
    ("K12", "open after a take-over", INVALID): [*OLDER, took_over(4, 7, 2), at(8, 9, "status", txn="x", status="open")],
}


@pytest.mark.parametrize(("name", "expected"), [(key, key[2]) for key in CASES], ids=[f"{key[0]}-{key[1]}" for key in CASES])
def test_a_history_made_by_hand(name, expected):
    ops = [Op(op.process, op.f, op.type, dict(op.value), op.start, op.end) for op in CASES[name]]
    verdict = judge(History(ops), [name[0]])[0]
    assert verdict.status == expected, str(verdict)


def hop_history(outputs):
    """Two inputs in "in", and outputs, each the numbers of the inputs that it names, in "out"."""
    where = {"partition": -1, "txn": None}
    ops = [meta(hops=[{"from": ["in"], "to": ["out"]}])]
    times = itertools.count(1)
    for topic, contents in (("in", [[], []]), ("out", [[("p", n) for n in named] for named in outputs])):
        first = 1 if topic == "in" else 101
        payloads = [make_payload("p", first + i, inputs=inputs) for i, inputs in enumerate(contents)]
        for i, payload in enumerate(payloads):
            now = next(times)
            ops.append(
                at(now, now, "send", topic=topic, producer="p", seq=first + i, payload=payload, position=[1, i, -1], **where)
            )
        start = next(times)
        common = {"subscription": None, "consumer": None, "reader": topic, "redeliveries": 0, "topic": topic, "partition": -1}
        ops += [
            at(next(times), 0, "deliver", payload=payload, position=[1, i, -1], **common) for i, payload in enumerate(payloads)
        ]
        ops.append(at(start, next(times), "final_read", topic=topic, partition=-1, reader=topic))
    return History(ops)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([[1], [2]], VALID),
        ([[2, 1]], VALID),
        ([[1]], INVALID),
        ([[1], [2], [1]], INVALID),
        ([[1, 1], [2]], INVALID),
        ([[1], [2], [3]], INVALID),
    ],
)
def test_a_hop_copies_each_input_once(outputs, expected):
    verdict = judge(hop_history(outputs), ["K14"])[0]
    assert verdict.status == expected, str(verdict)


def test_a_hop_without_a_full_read_is_unknown():
    history = hop_history([[1], [2]])
    kept = [op for op in history.ops if not (op.f == "final_read" and op.value["topic"] == "out")]
    assert judge(History(kept), ["K14"])[0].status == UNKNOWN
    assert judge(History([op for op in kept if op.f != "meta"]), ["K14"])[0].status == UNKNOWN


def test_a_check_that_nobody_knows_is_an_error():
    with pytest.raises(HistoryError, match="no check K99"):
        judge(History([begin(0, "x")]), ["K99"])


@pytest.mark.parametrize("check", CHECKS)
def test_an_empty_history_proves_nothing(check):
    assert judge(History([]), [check])[0].status == UNKNOWN


def test_the_search_for_an_order_gives_up_when_its_budget_is_used_up():
    ops = [at(0, 100, "commit", txn="x") for _ in range(12)]
    ops += [at(0, 100, "status", txn="x", status="open") for _ in range(12)]
    assert judge(History([*ops, at(200, 201, "status", txn="x", status="aborted")]), ["K12"])[0].status == UNKNOWN
    assert judge(History([at(0, 100, "commit", txn="x") for _ in range(12)]), ["K12"])[0].status == VALID


def write_run(folder, *, lose=False, checks=("K3", "K5")):
    with_meta = HistoryWriter(folder, "harness")
    with_meta.event("meta", checks=list(checks))
    writer = HistoryWriter(folder, "p")
    payload = make_payload("p", 1)
    where = {"topic": "t", "partition": -1}
    op = writer.invoke("send", producer="p", seq=1, txn=None, payload=payload, **where)
    writer.ok(op, position=[1, 5, -1])
    op = writer.invoke("final_read", reader="r", **where)
    if not lose:
        rest = {"subscription": None, "consumer": None, "reader": "r", "redeliveries": 0}
        writer.event("deliver", position=[1, 5, -1], payload=payload, **where, **rest)
    writer.ok(op)


def test_the_command_passes_only_when_all_asked_checks_are_valid(tmp_path, capsys):
    write_run(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "2 of 2 checks are VALID" in capsys.readouterr().out
    assert main([str(tmp_path), "--checks", "K3,K1"]) == 1
    assert "K1 UNKNOWN" in capsys.readouterr().out


def test_the_command_shows_the_operations_that_contradict(tmp_path, capsys):
    write_run(tmp_path, lose=True, checks=["K3"])
    assert main([str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "K3 INVALID" in shown
    assert '"seq":1' in shown
    assert "final_read" in shown


def test_the_command_says_what_it_cannot_read(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text("no history\n")
    assert main([str(tmp_path)]) == 2
    assert "x.jsonl:1:" in capsys.readouterr().err
