"""JSON Web Tokens as proof of a role. Imported only where they are configured: its libraries are many."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from pulsar_txn.broker.base.reloading import Reloaded
from pulsar_txn.broker.base.settings import ConfigError

from .proofs import Authenticated, TokenKeys, refused

_SYMMETRIC: Final = ("HS256", "HS384", "HS512")
_RSA: Final = ("RS256", "RS384", "RS512")
_ELLIPTIC: Final = ("ES256", "ES384", "ES512")
_LEAST_SECRET_BYTES: Final = 32
_MAX_TOKEN_BYTES: Final = 16_384


def tokens_of(keys: TokenKeys) -> TokenProvider:
    """Build it from a configuration. ConfigError."""
    if bool(keys.token_secret_key) == bool(keys.token_public_key):
        raise ConfigError("authentication by token needs one of tokenSecretKey and tokenPublicKey")
    if keys.token_secret_key:
        secret = _key_bytes("tokenSecretKey", keys.token_secret_key.reveal())
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
        file = _file_of(value)
        if file is not None:
            return file.read_bytes()
        return base64.b64decode(value, validate=True)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    except binascii.Error:
        raise ConfigError(f"{name} is neither a file:// URL nor base64") from None


def _file_of(value: str) -> Path | None:
    """The file that has the key; None where the value itself is the key."""
    path = Path(value.removeprefix("file://"))
    return path if value.startswith("file://") or path.is_absolute() else None


class ReloadedTokens:
    """`TokenProvider` with the key that is in its file now. What was let in by an older key stays until its token expires."""

    def __init__(self, keys: TokenKeys) -> None:
        secret = keys.token_secret_key
        file = _file_of(secret.reveal() if secret else keys.token_public_key or "")
        files = [] if file is None else [str(file)]
        self._tokens = Reloaded(lambda: tokens_of(keys), files, keys.tls_cert_refresh_check_duration_sec)

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """See `Provider.authenticate`."""
        return self._tokens.get(now).authenticate(data, certificate, now)


class TokenProvider:
    """JSON Web Tokens. `algorithms`: those of the configured key alone, whatever the token says of itself."""

    def __init__(self, key: Any, algorithms: Sequence[str], claim: str) -> None:
        self._key = key
        self._algorithms = list(algorithms)
        self._claim = claim

    def authenticate(self, data: bytes, certificate: Mapping[str, Any] | None, now: float) -> Authenticated:
        """See `Provider.authenticate`."""
        if not data or len(data) > _MAX_TOKEN_BYTES:
            raise refused("no token was given" if not data else "the token is too long")
        options: Any = {"verify_exp": False, "verify_aud": False, "verify_nbf": False, "verify_iat": False}
        try:
            claims = jwt.decode(data.decode("ascii"), self._key, algorithms=self._algorithms, options=options)
        except (jwt.InvalidTokenError, UnicodeDecodeError, RecursionError):
            raise refused("the token is not valid") from None
        role, expires, begins = claims.get(self._claim), claims.get("exp"), claims.get("nbf")
        if not isinstance(role, str) or not role.strip():
            raise refused(f"the token has no claim {self._claim!r} with a role")
        if not all(each is None or (isinstance(each, int | float) and math.isfinite(each)) for each in (expires, begins)):
            raise refused("the token is not valid")
        if expires is not None and expires <= now:
            raise refused("the token has expired")
        if begins is not None and begins > now:
            raise refused("the token is not valid yet")
        return Authenticated(role, expires)
