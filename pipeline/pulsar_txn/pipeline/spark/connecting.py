"""Options as a client: who we are, whom we trust, and the client's own arguments."""

from __future__ import annotations

from typing import Any, Final

import attrs

from pulsar_txn.client import AsyncClient, Authentication, OAuth2Authentication, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.spark.client_options import AUTH_PARAMS, AUTH_PLUGIN, authentication_of
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options

_MAX_BACKOFF_SECONDS: Final = 1.0
_OF_THE_CONNECTION: Final = ("service_url", "operation_timeout_ms", "client_options")
_PREFIXES: Final = ("token", "tls_", "oauth2_")
_NAMES: Final = tuple(
    field.name for field in attrs.fields(Options) if field.name in _OF_THE_CONNECTION or field.name.startswith(_PREFIXES)
)


def connection_of(options: Options) -> tuple[Any, ...]:
    """Return what two queries have in common that can share a client."""
    return tuple(getattr(options, name) for name in _NAMES)


def make_client(options: Options, transactional_id: str | None = None) -> AsyncClient:
    """A client of the cluster. Call it in the loop that the client is for. OptionError, InvalidConfiguration."""
    given = {name: value for name, value in options.client_options if name not in (AUTH_PLUGIN, AUTH_PARAMS)}
    arguments: dict[str, Any] = {
        "operation_timeout": options.operation_timeout_ms / 1000,
        "max_backoff": _MAX_BACKOFF_SECONDS,
        "transactional_id": transactional_id,
        "tls_trust_certs_file": options.tls_trust_certs_file,
        "tls_certificate_file": options.tls_certificate_file,
        "tls_key_file": options.tls_key_file,
        "tls_validate_hostname": options.tls_validate_hostname,
        "tls_allow_insecure_connection": options.tls_allow_insecure_connection,
    }
    return AsyncClient(options.service_url, authentication=authentication_of_options(options), **(arguments | given))


def authentication_of_options(options: Options) -> Authentication | None:
    """The one way to say who we are that the options name. OptionError when they name several."""
    authentication = _authentication(options)
    given = dict(options.client_options)
    plugin = given.get(AUTH_PLUGIN)
    if plugin is None:
        return authentication
    if authentication is not None:
        raise OptionError("both pulsar.client.authPluginClassName and an option of ours say who this is: leave one out")
    return authentication_of(plugin, given.get(AUTH_PARAMS, Secret("")))


def _authentication(options: Options) -> Authentication | None:
    """The one of our own options; a token's file is read again for every connection."""
    ways: dict[str, Authentication] = {}
    if options.token is not None:
        ways["token"] = TokenAuthentication(options.token)
    if options.token_file is not None:
        ways["tokenFile"] = TokenAuthentication.from_file(options.token_file)
    if options.oauth2_key_file is not None:
        ways["oauth2KeyFile"] = OAuth2Authentication.from_key_file(
            options.oauth2_key_file.reveal(),
            issuer_url=options.oauth2_issuer_url or "",
            audience=options.oauth2_audience,
            scope=options.oauth2_scope,
        )
    if len(ways) > 1:
        raise OptionError(f"{' and '.join(ways)} all say who this is: give one of them")
    if not ways and options.tls_certificate_file is not None:
        ways["tlsCertificateFile"] = TlsAuthentication(options.tls_certificate_file, options.tls_key_file)
    return next(iter(ways.values()), None)
