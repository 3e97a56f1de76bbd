"""Authentication of clients: tokens and client certificates, checked with Pulsar's configuration keys.

A role comes out, which is the owner of the transactions that the client begins. What a role may do is said of operators alone:
`superUserRoles` may end the transactions of others, and administrate.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.settings import ConfigError

from .proofs import Authenticated, Provider, TokenKeys, refused

_PROVIDERS: Final = {
    "token": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "tls": "tls",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
}


class AuthenticationKeys(TokenKeys, Protocol):
    """The keys of a configuration that this module reads; Pulsar's, in snake_case."""

    @property
    def authentication_enabled(self) -> bool:
        """True if clients have to say who they are."""

    @property
    def authentication_providers(self) -> str:
        """Names, separated by commas."""

    @property
    def super_user_roles(self) -> str:
        """Roles of operators, separated by commas."""


class Authentication:
    """The providers of a configuration, by method. None of them: nobody has to say who they are."""

    def __init__(self, providers: Mapping[str, Provider], superusers: Collection[str] = ()) -> None:
        self._providers = dict(providers)
        self._superusers = frozenset(superusers)

    @property
    def enabled(self) -> bool:
        """True if clients have to say who they are."""
        return bool(self._providers)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the providers' methods: `token`, `tls`."""
        return tuple(self._providers)

    def is_superuser(self, role: str | None) -> bool:
        """True if a role is an operator's (`superUserRoles`). Nobody is one while nobody has to say who they are."""
        return role in self._superusers

    def authenticate(self, method: str, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """Raises Refusal AuthenticationError."""
        provider = self._providers.get(method or "none")
        if provider is None:
            known = ", ".join(self._providers)
            raise refused(f"the method {method[:40]!r} is not known here; authenticate by {known}")
        return provider.authenticate(data, certificate, now)


def authentication_of(keys: AuthenticationKeys) -> Authentication:
    """Build it from a configuration. ConfigError."""
    if not keys.authentication_enabled:
        return Authentication({})
    named = names_in(keys.authentication_providers)
    if not named:
        raise ConfigError("authenticationEnabled=true needs authenticationProviders: token, tls, or both")
    found: dict[str, Provider] = {}
    for each in named:
        method = _PROVIDERS.get(each)
        if method is None:
            raise ConfigError(f"authenticationProviders={each} is not known here; write token, tls, or both")
        found[method] = _tokens(keys) if method == "token" else CertificateProvider()
    return Authentication(found, names_in(keys.super_user_roles))


def _tokens(keys: AuthenticationKeys) -> Provider:
    from .tokens import ReloadedTokens  # its libraries are of the extra `broker`, and take their time

    return ReloadedTokens(keys)


def names_in(text: str) -> tuple[str, ...]:
    """The names of a key that has several, separated by commas."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


class CertificateProvider:
    """The common name of the certificate that the client showed in its TLS handshake, which checked it."""

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """See `Provider.authenticate`."""
        if not certificate:
            raise refused("the connection has no certificate of the client")
        names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        if len(names) != 1 or not names[0].strip():
            raise refused("the client's certificate has no common name")
        return Authenticated(names[0], ssl.cert_time_to_seconds(certificate["notAfter"]))
