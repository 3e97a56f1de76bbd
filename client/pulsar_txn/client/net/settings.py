"""Settings that a client was given at its construction; one frozen value that everything below it shares."""

from __future__ import annotations

import ssl
from typing import Final

import attrs
from attrs.validators import optional

from pulsar_txn.client._validation import (
    A_WAY_TO_AUTHENTICATE,
    above_zero,
    as_seconds,
    flag,
    having,
    instance,
    refused,
    text,
    validate_text,
    whole,
)
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.authentication import Authentication
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.net.tls import TlsFiles, make_context

MAX_DESCRIPTION: Final = 64
"""Characters of a description, as in Java's client."""


def _not_blank(_instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value is None:
        return
    validate_text(attribute.name, value)
    if not value.strip():
        raise InvalidConfiguration(f"{attribute.name} is blank", hint="name what must not run twice, or leave it out")


def _known_fencing(_instance: object, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    if value not in (None, "topic"):
        raise InvalidConfiguration(f"{attribute.name}={value!r} is not known", hint='write "topic", or leave it out')


def _bytes(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if not isinstance(value, int) or value < 0:
        raise refused(attribute.name, value, "a number of bytes", hint="0 is no limit")


def _short(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    validate_text(attribute.name, value)
    if len(value) > MAX_DESCRIPTION:
        raise InvalidConfiguration(f"{attribute.name} has {len(value)} characters, {MAX_DESCRIPTION} are allowed")


_authentication: Final = having("data", needed=A_WAY_TO_AUTHENTICATE)


def _sni_proxy(url: str | Address | None) -> Address | None:
    if url is None or isinstance(url, Address):
        return url
    validate_text("sni_proxy_url", url)
    addresses = parse_service_url(url)
    if len(addresses) != 1 or not addresses[0].tls:
        raise InvalidConfiguration(f"not the URL of one TLS proxy: {url!r}", hint="write pulsar+ssl://proxy:4443")
    return addresses[0]


@attrs.frozen(kw_only=True)
class Settings:
    """Times are seconds, or given as timedeltas. `tls_context` is used for `pulsar+ssl`; None means one made of `tls`."""

    operation_timeout: float = attrs.field(default=30.0, converter=as_seconds, validator=above_zero)
    connection_timeout: float = attrs.field(default=10.0, converter=as_seconds, validator=above_zero)
    keep_alive_interval: float = attrs.field(default=30.0, converter=as_seconds, validator=above_zero)
    initial_backoff: float = attrs.field(default=0.1, converter=as_seconds, validator=above_zero)
    max_backoff: float = attrs.field(default=5.0, converter=as_seconds, validator=above_zero)
    max_lookup_redirects: int = attrs.field(default=20, validator=whole())
    authentication: Authentication | None = attrs.field(default=None, validator=optional(_authentication))
    tls_context: ssl.SSLContext | None = attrs.field(
        default=None, validator=optional(instance(ssl.SSLContext, "an ssl.SSLContext"))
    )
    tls: TlsFiles = attrs.field(factory=TlsFiles)
    listener_name: str | None = attrs.field(default=None, validator=optional(text))
    description: str = attrs.field(default="", validator=_short)
    memory_limit: int = attrs.field(default=0, validator=_bytes)
    sni_proxy: Address | None = attrs.field(default=None, converter=_sni_proxy)
    transactional_id: str | None = attrs.field(default=None, validator=_not_blank)
    fencing: str | None = attrs.field(default=None, validator=_known_fencing)
    one_transaction_at_a_time: bool = attrs.field(default=False, validator=flag)

    def ssl_context(self) -> ssl.SSLContext:
        """The context of a new TLS connection; files are read again. InvalidConfiguration when one cannot be read."""
        return self.tls_context if self.tls_context is not None else make_context(self.tls, self.authentication)
