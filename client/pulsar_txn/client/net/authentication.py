"""Authentication of a client: a method name, and data fetched again for every connection and every challenge.

`OAuth2Authentication` is in `pulsar_txn.client.net.oauth2`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, Self, TypeAlias

import attrs

from pulsar_txn.client.errors import AuthenticationError, InvalidConfiguration, PulsarError
from pulsar_txn.wire.secret_text import Secret, secret

TokenFunction: TypeAlias = "Callable[[], str | Awaitable[str]]"


class Authentication(Protocol):
    """A way to prove who we are. `data()` is called per connection and on AUTH_CHALLENGE, so it may rotate."""

    @property
    def method_name(self) -> str:
        """Pulsar's name of the method, for example `token`."""
        ...

    def data(self) -> bytes | Awaitable[bytes]:
        """Credentials to send, or an awaitable of them.

        Must not block. An OSError is taken for a passing trouble and tried again.
        """
        ...


def _token(value: str | Secret | TokenFunction) -> Secret | TokenFunction:
    if isinstance(value, Secret | str):
        return secret(value)
    if not callable(value):  # never shown
        raise InvalidConfiguration(f"token must be text, or a function that returns it, not {type(value).__name__}")
    return value


def _password(value: str | Secret) -> Secret:
    if not isinstance(value, str | Secret):
        raise InvalidConfiguration(f"password must be text, not {type(value).__name__}")
    return secret(value)


@attrs.frozen
class TokenAuthentication:
    """A JSON Web Token: the token, or a function (also a coroutine function) that returns the current one.

    A function is asked for every connection, and again when the broker wants a fresh token (AUTH_CHALLENGE). The token is
    left out of `repr`.
    """

    token: Secret | TokenFunction = attrs.field(repr=False, converter=_token)
    method_name: str = attrs.field(default="token", init=False)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """A token that is read from a file each time it is needed, so that the file may be replaced."""
        file = Path(path)
        return cls(lambda: file.read_text(encoding="utf-8").strip())

    def data(self) -> bytes | Awaitable[bytes]:
        """The token as bytes."""
        token = self.token.reveal() if isinstance(self.token, Secret) else self.token()
        return token.encode() if isinstance(token, str) else _encoded(token)


async def _encoded(token: Awaitable[str]) -> bytes:
    return (await token).encode()


def _without_colon(_instance: object, _attribute: attrs.Attribute[str], value: str) -> None:
    if not value or ":" in value:
        raise InvalidConfiguration(
            f"a user name of basic authentication is not empty and has no colon; this one begins {value.partition(':')[0]!r}",
            hint="give user and password apart",
        )


@attrs.frozen
class BasicAuthentication:
    """User name and password, as Pulsar's AuthenticationProviderBasic checks them. The password is left out of `repr`."""

    user: str = attrs.field(validator=_without_colon)
    password: Secret = attrs.field(repr=False, converter=_password)
    method_name: str = attrs.field(default="basic", init=False)

    def data(self) -> bytes:
        """`user:password`."""
        return f"{self.user}:{self.password.reveal()}".encode()


@attrs.frozen
class TlsAuthentication:
    """The certificate of the TLS connection says who we are (mTLS); needs a service URL of `pulsar+ssl://`.

    Both files are PEM and read again for every connection. Without files the certificate is that of the client's
    `tls_context`, or of its `tls_certificate_file`.
    """

    certificate_file: str | Path | None = None
    key_file: str | Path | None = None
    method_name: str = attrs.field(default="tls", init=False)

    def data(self) -> bytes:
        """Nothing: the broker looks at the certificate."""
        return b""


async def current_data(authentication: Authentication) -> bytes:
    """Current credentials. AuthenticationError when it fails; retriable when an OSError was the reason."""
    try:
        data = authentication.data()
        return await data if inspect.isawaitable(data) else data
    except PulsarError:
        raise
    except Exception as error:  # whatever the program's function raises
        # `repr` of an error of encoding has all of the text, and the text of an OSError the path, perhaps the token itself.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = f"the credentials could not be had: {type(error).__name__}: {reason}"
        retriable = isinstance(error, OSError)  # asyncio's TimeoutError is one as well
        failure = AuthenticationError(text, retriable=retriable, fatal=not retriable)
        if isinstance(error, OSError | UnicodeError):
            raise failure from None
        raise failure from error
