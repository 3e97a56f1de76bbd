"""Result of a proof of who somebody is: a role, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.secret_text import Secret


@attrs.frozen
class Authenticated:
    """Identity of a client, and until when that is known (seconds since the epoch; None: as long as the connection lasts)."""

    role: str
    expires: float | None = None


class TokenKeys(Protocol):
    """The keys of a configuration that this module reads; Pulsar's, in snake_case."""

    @property
    def token_secret_key(self) -> Secret | None:
        """A path, a data URL, or the key in base64."""

    @property
    def token_public_key(self) -> str | None:
        """The same, of a public key in DER or PEM."""

    @property
    def token_auth_claim(self) -> str:
        """The claim that has the role."""

    @property
    def tls_cert_refresh_check_duration_sec(self) -> int:
        """Between two looks whether the file of the key has changed."""


class Provider(Protocol):
    """One way to prove who one is, by Pulsar's name of the method."""

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """Raises Refusal AuthenticationError, whose text never has what was given."""


def refused_proxy() -> Refusal:
    """The refusal of a proxy that names the role of its client. Proxies that only carry bytes are not noticed."""
    return refused("a proxy cannot speak for its clients here: let the client's own credentials through, or connect directly")


def refused(text: str) -> Refusal:
    """The refusal of a proof. `text` never has what was given."""
    return Refusal(ServerError.AuthenticationError, text)
