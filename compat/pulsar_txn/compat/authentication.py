"""Ways to prove who we are, under the official names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import attrs

from pulsar_txn import client as ours
from pulsar_txn.client import OAuth2Authentication
from pulsar_txn.compat._arguments import check
from pulsar_txn.compat.exceptions import not_supported


class Authentication:
    """Base; the official one loads native libraries, which is not supported here."""

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:  # noqa: N803 - the official names
        raise not_supported(
            f"the native authentication plug-in {dynamicLibPath}",
            "use AuthenticationToken with a function, or an Authentication of pulsar_txn.client",
        )

    def native(self) -> ours.Authentication:
        """For the client: what it is given, made again for each."""
        return cast("Callable[[], ours.Authentication]", vars(self)["_make"])()


class AuthenticationToken(Authentication):
    """A token, or a function that returns the current one."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise ValueError("token must be str, or a function that returns str")  # noqa: TRY004 - the official client's class
        self._make = lambda: ours.TokenAuthentication(token)


class AuthenticationTLS(Authentication):
    """The client's certificate."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check(str, certificate_path, "certificate_path")
        check(str, private_key_path, "private_key_path")
        self._make = lambda: ours.TlsAuthentication(certificate_path, private_key_path)


@attrs.frozen
class _NamedBasic:
    """User and password under a method name of the cluster's own."""

    inner: ours.BasicAuthentication
    method_name: str

    def data(self) -> bytes:
        """`user:password`."""
        return self.inner.data()


class AuthenticationBasic(Authentication):
    """User name and password; or both, and perhaps `method`, in a JSON text."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            given = _json(auth_params_string)
            username, password = given.get("username"), given.get("password")
            method = given.get("method", method)
        check(str, username, "username")
        check(str, password, "password")
        check(str, method, "method")
        user, secret = cast("str", username), cast("str", password)
        self._make = lambda: _NamedBasic(ours.BasicAuthentication(user, secret), method)


class AuthenticationOauth2(Authentication):
    """OAuth 2.0 client credentials, as JSON: `issuer_url`, `private_key` (a key file) or `client_id` and `client_secret`,
    `audience`, `scope`."""

    def __init__(self, auth_params_string: str) -> None:
        given = _json(auth_params_string)
        issuer, audience, scope = given.get("issuer_url", ""), given.get("audience"), given.get("scope")
        if "private_key" in given:
            self._make = lambda: OAuth2Authentication.from_key_file(
                given["private_key"], issuer_url=issuer, audience=audience, scope=scope
            )
        else:
            if not {"client_id", "client_secret"} <= given.keys():
                raise ValueError("auth_params_string needs private_key, or client_id and client_secret")
            self._make = lambda: OAuth2Authentication(
                issuer,
                client_id=given["client_id"],
                client_secret=given["client_secret"],
                audience=audience,
                scope=scope,
            )


class AuthenticationAthenz(Authentication):
    """Not supported."""

    def __init__(self, auth_params_string: str) -> None:
        raise not_supported("Athenz", "use AuthenticationToken with a function that gets the role token")


def _json(text: object) -> dict[str, Any]:
    check(str, text, "auth_params_string")
    try:
        given = json.loads(cast("str", text))
    except ValueError as error:
        raise ValueError(f"auth_params_string must be JSON: {error}") from None  # the error has the text
    if not isinstance(given, dict):
        raise ValueError("auth_params_string must be a JSON object")  # noqa: TRY004 - the official client's class
    return given
