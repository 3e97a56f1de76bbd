"""The words of the back-check: what a coordinator asks a member of a check group, and what the member answers.

A transaction with a check group that stays open is not simply aborted: its coordinator asks a living member of the group what
has become of the work that the transaction goes with (RocketMQ's back-check, `docs/adr/0043`). `check_data` goes with the
question. For half messages it is a picture of the first message, unless the program gives its own bytes.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from pulsar_txn.client._checks import check_text, refused, seconds_of
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnId

MAX_DATA_BYTES: Final = 64 * 1024
"""Of what goes with a transaction for its check: its coordinator keeps it in memory."""

MAX_HEAD_BYTES: Final = 4096
"""Of the picture of a message: properties that do not fit are left out."""

_HEAD: Final = b"\x00msg1"
"""What begins the picture of a message. Text and JSON of programs never begin so."""


class LocalOutcome(enum.Enum):
    """Outcome of the work that a transaction goes with; `execute` and `check` return it."""

    COMMIT = 0
    """It is done, so the messages are to become visible."""
    ROLLBACK = 1
    """It is not done and never will be, so the messages are to disappear."""
    UNKNOWN = 2
    """It is not known yet: ask again later."""


class Decision(enum.Enum):
    """Decision of a coordinator about a transaction of a check group, made without the group."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    PARKED = "parked"
    """Nobody knew its outcome: it waits for an operator (`pulsar-txn transactions list --parked`)."""


_ACTIONS: Final = {0: Decision.COMMITTED, 1: Decision.ABORTED}
_REASONS: Final = {1: "timeout", 4: "successor", 5: "operator", 7: "disconnect", 8: "unanswered"}


@attrs.frozen
class CheckedMessage:
    """The first message of a half transaction, without its body. `complete` is False when properties were left out."""

    topic: str
    key: str | None = None
    properties: Mapping[str, str] = attrs.field(factory=dict)
    complete: bool = True


@attrs.frozen
class CheckQuestion:
    """One question of a coordinator: has the work of this transaction been done?

    `data` is what the transaction was begun with (`check_data`). `count` is 1 for the first question that a member begins to
    answer; after question `max_checks` the coordinator decides by its policy, which is to park the transaction. 0 means that it
    asks for ever, as it does when the transaction is `prepared`.
    """

    txn_id: TxnId
    group: str
    data: bytes = b""
    count: int = 1
    max_checks: int = 0
    prepared: bool = False

    @property
    def message(self) -> CheckedMessage | None:
        """The first message that was sent, when `data` is its picture; None when the program gave data of its own."""
        return message_of(self.data)


@attrs.frozen
class CheckDecision:
    """A transaction of a check group that neither its client nor the group has decided: what `on_decided` is given.

    `reason`: `timeout` (it was over while no member lived), `unanswered` (the last question brought no answer, so the policy
    decided), `operator`, `successor` (of its transactional id), `disconnect`, or `unknown`. `count`: how many questions about
    it were begun. `data`: what the transaction was begun with.
    """

    txn_id: TxnId
    group: str
    decision: Decision
    reason: str
    data: bytes = b""
    count: int = 0

    @property
    def message(self) -> CheckedMessage | None:
        """The first message that was sent, when `data` is its picture; None when the program gave data of its own."""
        return message_of(self.data)


def decision_of(body: Any) -> CheckDecision:
    """Read TXN_CHECK_DECIDED."""
    txn_id = TxnId(body.txnid_most_bits, body.txnid_least_bits)
    decision = _ACTIONS[body.txn_action] if body.HasField("txn_action") else Decision.PARKED
    reason = _REASONS.get(body.cause, "unknown")
    return CheckDecision(txn_id, body.group, decision, reason, body.check_data, body.check_count)


def data_of(topic: str, key: str | None, properties: Mapping[str, str] | None) -> bytes:
    """A picture of a message for `check_data`, at most MAX_HEAD_BYTES: its topic, its key, and the properties that fit.

    A key of more than a quarter of these bytes is left out.
    """
    head: dict[str, Any] = {"t": topic}
    if key is not None:
        head |= {"k": key} if len(key.encode()) <= MAX_HEAD_BYTES // 4 else {"c": False}
    given = dict(properties or {})
    data = _encoded(head | ({"p": given} if given else {}))
    if len(data) <= MAX_HEAD_BYTES:
        return data
    kept: dict[str, str] = {}
    head["c"] = False
    left = MAX_HEAD_BYTES - len(_encoded(head | {"p": {}}))
    for name, value in given.items():
        left -= len(_json({name: value}))  # its braces count for the comma
        if left < 0:
            break
        kept[name] = value
    return _encoded(head | {"p": kept})


def message_of(data: bytes) -> CheckedMessage | None:
    """Return what `data_of` made a picture of; None for any other bytes."""
    if not data.startswith(_HEAD):
        return None
    try:
        head = json.loads(data[len(_HEAD) :])
        return CheckedMessage(head["t"], head.get("k"), head.get("p", {}), head.get("c", True))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # bytes of a program that happen to begin like it


def _encoded(head: Mapping[str, Any]) -> bytes:
    return _HEAD + _json(head)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def checked(group: str | None, data: bytes | None, after: Any, *, abort_on_disconnect: bool = False) -> Checked | None:
    """Make NEW_TXN's fields about checks of a program's arguments; None when there are none. InvalidConfiguration."""
    if group is None:
        for name, value in (("check_data", data), ("check_after", after)):
            if value is not None:
                raise InvalidConfiguration(f"{name}= is for the members of a group", hint="also give check_group=")
        return Checked(abort_on_disconnect=True) if abort_on_disconnect else None
    check_group_name("check_group", group)
    after_ms = None if after is None else int(seconds_of(after, "check_after") * 1000)
    return Checked(group, check_data("check_data", data), after_ms, abort_on_disconnect=bool(abort_on_disconnect))


def check_data(what: str, data: bytes | None) -> bytes:
    """For what goes with a transaction; nothing is no bytes."""
    if data is None:
        return b""
    if not isinstance(data, bytes):
        raise refused(what, data, "bytes")
    if len(data) > MAX_DATA_BYTES:
        raise InvalidConfiguration(
            f"{what} has {len(data)} bytes, {MAX_DATA_BYTES} are allowed", hint="give a key by which the check finds the rest"
        )
    return data


def check_group_name(what: str, group: object) -> None:
    """For the name of a check group."""
    check_text(what, group)
    if not str(group).strip():
        raise InvalidConfiguration(f"{what} is blank", hint="name what the members have in common, for instance the service")
