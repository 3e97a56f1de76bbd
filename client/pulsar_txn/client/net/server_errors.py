"""Which error a ServerError code of an answer is for a program."""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.errors import PulsarError, UnknownError
from pulsar_txn.wire.ids import TxnId


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
