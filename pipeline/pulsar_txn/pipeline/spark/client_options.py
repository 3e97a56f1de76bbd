"""`pulsar.client.…`: arguments of the client, under our names or those of Pulsar's Java client."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pulsar_txn.client import (
    Authentication,
    BasicAuthentication,
    OAuth2Authentication,
    TlsAuthentication,
    TokenAuthentication,
)
from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.option_values import (
    EXPECTED,
    flag,
    milliseconds,
    nanoseconds,
    positive,
    seconds,
    secret,
    text,
    whole,
)

PREFIX: Final = "pulsar.client."

AUTH_PLUGIN: Final = "auth_plugin"
AUTH_PARAMS: Final = "auth_params"
"""Not arguments of the client: together they make its `authentication`."""

_ARGUMENTS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "operation_timeout": ("operation_timeout", seconds),
    "connection_timeout": ("connection_timeout", seconds),
    "keep_alive_interval": ("keep_alive_interval", seconds),
    "initial_backoff": ("initial_backoff", seconds),
    "max_backoff": ("max_backoff", seconds),
    "listener_name": ("listener_name", text),
    "max_lookup_redirects": ("max_lookup_redirects", positive),
    "memory_limit": ("memory_limit", whole),
    "description": ("description", text),
    "sni_proxy_url": ("sni_proxy_url", text),
    "coordinator": ("coordinator", text),
    "cluster": ("cluster", text),
    "tls_trust_certs_file": ("tls_trust_certs_file", text),
    "tls_certificate_file": ("tls_certificate_file", text),
    "tls_key_file": ("tls_key_file", text),
    "tls_validate_hostname": ("tls_validate_hostname", flag),
    "tls_allow_insecure_connection": ("tls_allow_insecure_connection", flag),
    # as Pulsar's Java client calls them
    "operationTimeoutMs": ("operation_timeout", milliseconds),
    "connectionTimeoutMs": ("connection_timeout", milliseconds),
    "keepAliveIntervalSeconds": ("keep_alive_interval", seconds),
    "initialBackoffIntervalNanos": ("initial_backoff", nanoseconds),
    "maxBackoffIntervalNanos": ("max_backoff", nanoseconds),
    "memoryLimitBytes": ("memory_limit", whole),
    "tlsTrustCertsFilePath": ("tls_trust_certs_file", text),
    "tlsCertificateFilePath": ("tls_certificate_file", text),
    "tlsKeyFilePath": ("tls_key_file", text),
    "tlsHostnameVerificationEnable": ("tls_validate_hostname", flag),
    "authPluginClassName": (AUTH_PLUGIN, text),
    "authParams": (AUTH_PARAMS, secret),
}
"""Name after the prefix -> the client's argument, and how its text is read."""


def _key(name: str) -> str:
    """Spark hands names over in lower case, so case and underscores cannot tell two of them apart."""
    return name.replace("_", "").lower()


_BY_KEY: Final = {_key(name): found for name, found in _ARGUMENTS.items()}
_NAMES: Final = {_key(name): name for name in _ARGUMENTS}


def read_client_option(name: str, value: str) -> dict[str, Any]:
    """The argument that an option `pulsar.client.…` sets. OptionError for one that the client does not have."""
    key = _key(name[len(PREFIX) :])
    found = _BY_KEY.get(key)
    if found is None:
        close = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.6)
        advice = (
            f"did you mean {PREFIX + _NAMES[close[0]]!r}?" if close else f"the client knows {', '.join(sorted(_ARGUMENTS))}"
        )
        raise OptionError(f"unknown option {name!r}; {advice}")
    argument, read = found
    try:
        return {argument: read(value)}
    except (ValueError, KeyError):
        raise OptionError(f"option {name}: {value!r} is not {EXPECTED[read]}") from None


def authentication_of(plugin: str, secret: Secret) -> Authentication:
    """Return what Pulsar's `authPluginClassName` and `authParams` mean. OptionError."""
    kind = plugin.rpartition(".")[2].removeprefix("Authentication").lower()
    make = _PLUGINS.get(kind)
    if make is None:
        raise OptionError(
            "pulsar.client.authPluginClassName is not known; known are AuthenticationToken, AuthenticationTls, "
            "AuthenticationBasic and AuthenticationOAuth2; credentials belong into pulsar.client.authParams"
        )
    try:
        return make(secret.reveal())
    except (ValueError, KeyError):
        raise OptionError(f"pulsar.client.authParams do not fit {plugin}: see Pulsar's documentation of that plugin") from None


def _token(params: str) -> Authentication:
    if params.startswith("file:"):
        return TokenAuthentication.from_file(params.removeprefix("file://").removeprefix("file:"))
    return TokenAuthentication(params.removeprefix("token:"))


def _tls(params: str) -> Authentication:
    files = _pairs(params)
    return TlsAuthentication(files["tlsCertFile"], files["tlsKeyFile"])


def _basic(params: str) -> Authentication:
    if params.lstrip().startswith("{"):
        given = json.loads(params)
        return BasicAuthentication(given["userId"], given["password"])
    user, colon, password = params.partition(":")
    if not colon:
        raise ValueError
    return BasicAuthentication(user, password)


def _oauth2(params: str) -> Authentication:
    given = json.loads(params)
    return OAuth2Authentication.from_key_file(
        given["privateKey"], issuer_url=given.get("issuerUrl", ""), audience=given.get("audience"), scope=given.get("scope")
    )


def _pairs(params: str) -> Mapping[str, str]:
    """`name:value,name:value`, or a JSON object."""
    if params.lstrip().startswith("{"):
        return dict(json.loads(params))
    return {name.strip(): value.strip() for name, _, value in (pair.partition(":") for pair in params.split(","))}


_PLUGINS: Final[dict[str, Callable[[str], Authentication]]] = {
    "token": _token,
    "tls": _tls,
    "basic": _basic,
    "oauth2": _oauth2,
}
