"""Authentication over HTTP: the providers of the binary port, with the headers and the certificate of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from pulsar_txn.wire.errors import Refusal, ServerError

from .authentication import Authentication

_BEARER: Final = "bearer"


@attrs.frozen
class Asker:
    """Asker over HTTP: its role (None without authentication), and whether it may administrate (without it everybody)."""

    role: str | None
    superuser: bool

    def sees(self, owner: str | None) -> bool:
        """True if what belongs to `owner` is this asker's business."""
        return self.superuser or (owner is not None and owner == self.role)


NOBODY: Final = Asker(None, superuser=False)
"""Role of a client without credentials."""


def asker_of(
    authentication: Authentication,
    authorization: Sequence[str],
    certificate: Mapping[str, Any] | None,
    now: float,
) -> Asker:
    """Identify the asker. Raises Refusal AuthenticationError, whose text never has the credentials.

    `authorization`: the values of the headers of that name. A token counts before the certificate of the connection. `now`:
    seconds since the epoch; a connection may be older than what it was opened with.
    """
    if not authentication.enabled:
        return Asker(None, superuser=True)
    if len(authorization) > 1:
        raise Refusal(ServerError.AuthenticationError, "the request has more than one Authorization header")
    if authorization:
        scheme, _, token = authorization[0].partition(" ")
        if scheme.lower() != _BEARER or "token" not in authentication.methods:
            known = " or ".join(_WAYS[each] for each in authentication.methods)
            raise Refusal(ServerError.AuthenticationError, f"this kind of Authorization is not known here; send {known}")
        known_as = authentication.authenticate("token", token.strip().encode(errors="replace"), None, now)
    elif certificate and "tls" in authentication.methods:
        known_as = authentication.authenticate("tls", b"", certificate, now)
        if known_as.expires is not None and known_as.expires <= now:
            raise Refusal(ServerError.AuthenticationError, "the client's certificate has expired")
    else:
        known = " or ".join(_WAYS[each] for each in authentication.methods)
        raise Refusal(ServerError.AuthenticationError, f"say who you are: send {known}")
    return Asker(known_as.role, authentication.is_superuser(known_as.role))


_WAYS: Final = {"token": "Authorization: Bearer TOKEN", "tls": "a client certificate, over https"}
