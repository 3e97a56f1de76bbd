"""Errors of a program for the ServerError codes of answers."""

from __future__ import annotations

from typing import Any, Final

from pulsar_txn.client.errors import OutOfOrderSequence, PulsarError, UnknownError
from pulsar_txn.wire.ids import TxnId, signed64


def _all_classes(cls: type[PulsarError]) -> list[type[PulsarError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _all_classes(sub))]


_BY_CODE: Final[dict[int, type[PulsarError]]] = {
    int(cls.__dict__["code"]): cls for cls in _all_classes(PulsarError) if cls.__dict__.get("code") is not None
}


def from_server(
    code: int, message: str, *, endpoint: str | None = None, txn_id: TxnId | None = None, maybe_processed: bool = False
) -> PulsarError:
    """The error that a ServerError code of an answer represents; a code newer than this client becomes UnknownError."""
    cls = _BY_CODE.get(code, UnknownError)
    return cls(message, endpoint=endpoint, txn_id=txn_id, maybe_processed=maybe_processed)


def from_send_error(body: Any, endpoint: str) -> PulsarError:
    """The error of a SEND_ERROR."""
    if not body.HasField("expected_sequence_id"):
        return from_server(body.error, body.message, endpoint=endpoint)
    error = OutOfOrderSequence(body.message, endpoint=endpoint)
    error.expected_sequence_id = signed64(body.expected_sequence_id)
    return error
