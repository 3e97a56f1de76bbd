"""What a client was told at its construction; one frozen value that everything below it shares."""

from __future__ import annotations

import ssl

import attrs

from pulsar_txn.client.authentication import Authentication
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.tls import TlsFiles, make_context


def _positive(_instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise InvalidConfiguration(f"{attribute.name} must be more than 0, not {value!r}", hint="give it in seconds")


@attrs.frozen(kw_only=True)
class Settings:
    """Seconds throughout. `tls_context` is used for `pulsar+ssl` addresses; None means one made of `tls`."""

    operation_timeout: float = attrs.field(default=30.0, validator=_positive)
    connection_timeout: float = attrs.field(default=10.0, validator=_positive)
    keep_alive_interval: float = attrs.field(default=30.0, validator=_positive)
    initial_backoff: float = attrs.field(default=0.1, validator=_positive)
    max_backoff: float = attrs.field(default=60.0, validator=_positive)
    max_lookup_redirects: int = 20
    authentication: Authentication | None = None
    tls_context: ssl.SSLContext | None = None
    tls: TlsFiles = attrs.field(factory=TlsFiles)
    listener_name: str | None = None
    description: str = ""

    def ssl_context(self) -> ssl.SSLContext:
        """The context of a new TLS connection; files are read anew. InvalidConfiguration when one cannot be read."""
        return self.tls_context if self.tls_context is not None else make_context(self.tls, self.authentication)
