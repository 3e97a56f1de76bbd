"""The token of a prepared transaction: who holds it may end the transaction, from any process and at any time."""

from __future__ import annotations

from typing import Final, Self

import attrs

from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.wire.ids import TxnId

SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 64
_BETWEEN: Final = "#"
_HINT: Final = "give the token that txn.prepare() returned, or its text: str(token)"


@attrs.frozen
class PreparedToken:
    """Token of a prepared transaction: its id, and a secret that shows the right to end it. `txn.prepare()` returns it.

    `str(token)` and `bytes(token)` are the same text, `(3,42)#9f…`, for a column of a database or a file;
    `client.attach_prepared` takes all three. The secret is in none of the client's logs, nor in `repr`. Can be pickled.
    """

    txn_id: TxnId
    secret: bytes = attrs.field(repr=False)

    def __str__(self) -> str:
        return f"{self.txn_id}{_BETWEEN}{self.secret.hex()}"

    def __bytes__(self) -> bytes:
        return str(self).encode()

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The token of a text. InvalidConfiguration when it is none."""
        try:
            shown = text.decode() if isinstance(text, bytes) else text
            txn_id, between, secret = shown.partition(_BETWEEN)
            token = cls(TxnId.parse(txn_id), bytes.fromhex(secret))
        except (ValueError, AttributeError, TypeError):
            raise InvalidConfiguration("this is no token of a prepared transaction", hint=_HINT) from None
        if not between or not 0 < len(token.secret) <= MAX_SECRET_BYTES:
            raise InvalidConfiguration("this is no token of a prepared transaction", hint=_HINT)
        return token


def check_secret(secret: object) -> bytes:
    """InvalidConfiguration unless it can be that of a token."""
    if not isinstance(secret, bytes) or not 0 < len(secret) <= MAX_SECRET_BYTES:
        raise refused("secret", type(secret), f"1 to {MAX_SECRET_BYTES} bytes")
    return secret


def token_of(given: object) -> PreparedToken:
    """The token that a program gives as itself or as its text. InvalidConfiguration."""
    if isinstance(given, PreparedToken):
        return given
    if not isinstance(given, str | bytes):
        raise refused("token", type(given), "a PreparedToken or its text", hint=_HINT)
    return PreparedToken.parse(given)
