"""Extras that only some transactions have: a check group, a nonce, the token of a PREPARE. All others carry None in its place.

An `Extras` never changes. A record that changes something of it puts another one in its place, so a snapshot that is being
written shows what there was at its moment.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.tc.requests import NewTxn
from pulsar_txn.wire.errors import Refusal, ServerError

MAX_GROUP_LENGTH: Final = 256
"""Characters of a group's name."""
MAX_CHECK_DATA: Final = 64 * 1024
"""Bytes that go back to the member that is asked."""
MAX_TOKEN: Final = 64
"""Bytes of a nonce, and of the token of a PREPARE."""

_EXTRAS_BYTES: Final = 256


class Extras(NamedTuple):
    """`nonce` and `prepared_token`: empty for none. `group`: None for none; then nothing is asked.

    `data`: what goes to the member that is asked. `after_ms`: the age at which it is asked first, None: the coordinator's own
    rule. `check_count`: how many questions members have begun to answer. `asked_ms`: when the last of them was begun, since the
    transaction was prepared if it is; None: not yet. `parked_ms`: since when it is parked, None: it is not. `resumed_ms`: when
    an operator let it go on, from which its timeout runs again. `held`: why it is HELD (`causes.Cause`).
    """

    nonce: bytes = b""
    group: str | None = None
    data: bytes = b""
    after_ms: int | None = None
    check_count: int = 0
    asked_ms: int | None = None
    prepared_token: bytes = b""
    prepared_ms: int = 0
    held: int = 0
    parked_ms: int | None = None
    resumed_ms: int | None = None

    @property
    def size(self) -> int:
        """Return what the limits count for it, in bytes."""
        return _EXTRAS_BYTES + len(self.nonce) + len(self.group or "") + len(self.data) + len(self.prepared_token)

    def asked(self, now_ms: int) -> Extras:
        """After one more question was begun."""
        return self._replace(check_count=self.check_count + 1, asked_ms=now_ms)

    def prepared(self, token: bytes, now_ms: int) -> Extras:
        """After a PREPARE: the time to the first question begins again."""
        resumed_ms = self.resumed_ms if self.parked_ms is None else now_ms
        return self._replace(prepared_token=token, prepared_ms=now_ms, asked_ms=None, parked_ms=None, resumed_ms=resumed_ms)

    def parked(self, now_ms: int) -> Extras:
        """After the last question: it waits for an operator."""
        return self._replace(parked_ms=now_ms)

    def resumed(self, now_ms: int) -> Extras:
        """As before its first question; its timeout begins again."""
        return self._replace(check_count=0, asked_ms=None, parked_ms=None, resumed_ms=now_ms)


NO_EXTRAS: Final = Extras()


def asked_for(request: NewTxn) -> Extras:
    """Return what a NewTxn asks for beside. Raises Refusal with NotAllowedError for what is too long, or not there."""
    check, nonce = request.check, request.nonce
    if len(nonce) > MAX_TOKEN:
        raise Refusal(ServerError.NotAllowedError, f"a nonce has 1 to {MAX_TOKEN} bytes; this one has {len(nonce)}")
    if check is None:
        return Extras(nonce)
    if not check.group.strip() or len(check.group) > MAX_GROUP_LENGTH:
        raise Refusal(
            ServerError.NotAllowedError,
            f"a check group has 1 to {MAX_GROUP_LENGTH} characters that are not all blank; this one has {len(check.group)}",
        )
    if len(check.data) > MAX_CHECK_DATA:
        raise Refusal(
            ServerError.NotAllowedError,
            f"check data has at most {MAX_CHECK_DATA} bytes, these are {len(check.data)}: name what to look up, not all of it",
        )
    if check.after_ms is not None and check.after_ms < 0:
        raise Refusal(ServerError.NotAllowedError, f"a check after {check.after_ms} ms is in the past: ask for 0 or more")
    return Extras(nonce, check.group, check.data, check.after_ms)


def write_extras(stored: CoordinatorSnapshot.Transaction, extras: Extras) -> None:
    """Write them into the element of a snapshot."""
    if extras.nonce:
        stored.nonce = extras.nonce
    if extras.group is not None:
        stored.check_group, stored.check_data, stored.check_count = extras.group, extras.data, extras.check_count
        if extras.after_ms is not None:
            stored.check_after_ms = extras.after_ms
        if extras.asked_ms is not None:
            stored.asked_ms = extras.asked_ms
    if extras.prepared_token:
        stored.prepared_token, stored.prepared_ms = extras.prepared_token, extras.prepared_ms
    if extras.held:
        stored.held_cause = extras.held
    if extras.parked_ms is not None:
        stored.parked_ms = extras.parked_ms
    if extras.resumed_ms is not None:
        stored.resumed_ms = extras.resumed_ms


def read_extras(stored: CoordinatorSnapshot.Transaction) -> Extras | None:
    """The inverse; None for none."""
    if not (stored.nonce or stored.HasField("check_group") or stored.prepared_token or stored.held_cause):
        return None
    return Extras(
        stored.nonce,
        stored.check_group if stored.HasField("check_group") else None,
        stored.check_data,
        stored.check_after_ms if stored.HasField("check_after_ms") else None,
        stored.check_count,
        stored.asked_ms if stored.HasField("asked_ms") else None,
        stored.prepared_token,
        stored.prepared_ms,
        stored.held_cause,
        stored.parked_ms if stored.HasField("parked_ms") else None,
        stored.resumed_ms if stored.HasField("resumed_ms") else None,
    )
