"""Who a client is: tokens and client certificates, checked with Pulsar's configuration keys.

A role comes out, which is the owner of the transactions that the client begins. What a role may do is said of operators alone:
`superUserRoles` may end the transactions of others, and administrate.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from pulsar_txn.broker.base.config import ConfigError
from pulsar_txn.wire.errors import Refusal, ServerError

_SYMMETRIC: Final = ("HS256", "HS384", "HS512")
_RSA: Final = ("RS256", "RS384", "RS512")
_ELLIPTIC: Final = ("ES256", "ES384", "ES512")
_LEAST_SECRET_BYTES: Final = 32
_MAX_TOKEN_BYTES: Final = 16_384
_PROVIDERS: Final = {
    "token": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "tls": "tls",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
}


@attrs.frozen
class Authenticated:
    """Who it is, and until when that is known (seconds since the epoch; None: as long as the connection lasts)."""

    role: str
    expires: float | None = None


class Provider(Protocol):
    """One way to prove who one is, by Pulsar's name of the method."""

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """Raises Refusal AuthenticationError, whose text never has what was given."""


class AuthenticationKeys(Protocol):
    """The keys of a configuration that this module reads; Pulsar's, in snake_case."""

    @property
    def authentication_enabled(self) -> bool:
        """Whether clients have to say who they are."""

    @property
    def authentication_providers(self) -> str:
        """Names, separated by commas."""

    @property
    def token_secret_key(self) -> str | None:
        """A path, a data URL, or the key in base64."""

    @property
    def token_public_key(self) -> str | None:
        """The same, of a public key in DER or PEM."""

    @property
    def token_auth_claim(self) -> str:
        """The claim that has the role."""

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
        """Whether clients have to say who they are."""
        return bool(self._providers)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the providers' methods: `token`, `tls`."""
        return tuple(self._providers)

    def is_superuser(self, role: str | None) -> bool:
        """Whether a role is an operator's (`superUserRoles`). Nobody is one while nobody has to say who they are."""
        return role in self._superusers

    def authenticate(self, method: str, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """Raises Refusal AuthenticationError."""
        provider = self._providers.get(method or "none")
        if provider is None:
            known = ", ".join(self._providers)
            raise _refused(f"the method {method[:40]!r} is not known here; authenticate by {known}")
        return provider.authenticate(data, certificate, now)


def authentication_of(keys: AuthenticationKeys) -> Authentication:
    """What a configuration says. ConfigError."""
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
        found[method] = _tokens_of(keys) if method == "token" else CertificateProvider()
    return Authentication(found, names_in(keys.super_user_roles))


def names_in(text: str) -> tuple[str, ...]:
    """The names of a key that has several, separated by commas."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _tokens_of(keys: AuthenticationKeys) -> TokenProvider:
    if bool(keys.token_secret_key) == bool(keys.token_public_key):
        raise ConfigError("authentication by token needs one of tokenSecretKey and tokenPublicKey")
    if keys.token_secret_key:
        secret = _key_bytes("tokenSecretKey", keys.token_secret_key)
        if len(secret) < _LEAST_SECRET_BYTES:
            raise ConfigError(f"tokenSecretKey has {len(secret)} bytes, and {_LEAST_SECRET_BYTES} are the least")
        return TokenProvider(secret, _SYMMETRIC, keys.token_auth_claim)
    return TokenProvider(*_public(_key_bytes("tokenPublicKey", keys.token_public_key or "")), keys.token_auth_claim)


def _public(data: bytes) -> tuple[Any, Sequence[str]]:
    """A public key, and the algorithms that go with its kind: never those of a secret."""
    try:
        key = load_pem_public_key(data) if data.lstrip().startswith(b"-----") else load_der_public_key(data)
    except ValueError:
        raise ConfigError("tokenPublicKey is no public key in PEM or DER") from None
    if isinstance(key, RSAPublicKey):
        return key, _RSA
    if isinstance(key, EllipticCurvePublicKey):
        return key, _ELLIPTIC
    raise ConfigError("tokenPublicKey is neither an RSA nor an elliptic-curve key")


def _key_bytes(name: str, value: str) -> bytes:
    """A key as Pulsar's files give it: `file:///path`, `data:;base64,…`, a path, or base64. It is never shown."""
    try:
        if value.startswith("data:"):
            return base64.b64decode(value.partition(",")[2], validate=True)
        path = Path(value.removeprefix("file://"))
        if value.startswith("file://") or path.is_absolute():
            return path.read_bytes()
        return base64.b64decode(value, validate=True)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    except binascii.Error:
        raise ConfigError(f"{name} is neither a file:// URL nor base64") from None


class TokenProvider:
    """JSON Web Tokens. `algorithms`: those of the configured key alone, whatever the token says of itself."""

    def __init__(self, key: Any, algorithms: Sequence[str], claim: str) -> None:
        self._key = key
        self._algorithms = list(algorithms)
        self._claim = claim

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """See `Provider.authenticate`."""
        if not data or len(data) > _MAX_TOKEN_BYTES:
            raise _refused("no token was given" if not data else "the token is too long")
        options: Any = {"verify_exp": False, "verify_aud": False, "verify_nbf": False, "verify_iat": False}
        try:
            claims = jwt.decode(data.decode("ascii"), self._key, algorithms=self._algorithms, options=options)
        except (jwt.InvalidTokenError, UnicodeDecodeError):
            raise _refused("the token is not valid") from None
        role, expires, begins = claims.get(self._claim), claims.get("exp"), claims.get("nbf")
        if not isinstance(role, str) or not role.strip():
            raise _refused(f"the token has no claim {self._claim!r} with a role")
        if not all(each is None or isinstance(each, int | float) for each in (expires, begins)):
            raise _refused("the token is not valid")
        if expires is not None and expires <= now:
            raise _refused("the token has expired")
        if begins is not None and begins > now:
            raise _refused("the token is not valid yet")
        return Authenticated(role, expires)


class CertificateProvider:
    """The common name of the certificate that the client showed in its TLS handshake, which checked it."""

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """See `Provider.authenticate`."""
        if not certificate:
            raise _refused("the connection has no certificate of the client")
        names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        if len(names) != 1 or not names[0].strip():
            raise _refused("the client's certificate has no common name")
        return Authenticated(names[0], ssl.cert_time_to_seconds(certificate["notAfter"]))


def _refused(text: str) -> Refusal:
    return Refusal(ServerError.AuthenticationError, text)
