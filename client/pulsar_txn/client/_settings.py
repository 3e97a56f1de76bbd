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


def _not_blank(_instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not value.strip():
        raise InvalidConfiguration(f"{attribute.name} is blank", hint="name what must not run twice, or leave it out")


def _known_fencing(_instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value not in (None, "topic"):
        raise InvalidConfiguration(f"{attribute.name}={value!r} is not known", hint='write "topic", or leave it out')


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
    transactional_id: str | None = attrs.field(default=None, validator=_not_blank)
    fencing: str | None = attrs.field(default=None, validator=_known_fencing)

    def ssl_context(self) -> ssl.SSLContext:
        """The context of a new TLS connection; files are read anew. InvalidConfiguration when one cannot be read."""
        return self.tls_context if self.tls_context is not None else make_context(self.tls, self.authentication)
