"""The service URL: `pulsar://host:port,host2:port2` or `pulsar+ssl://…`; ports default to 6650 and 6651."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import attrs

from pulsar_txn.client._validation import validate_text
from pulsar_txn.client.errors import InvalidConfiguration

DEFAULT_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


@attrs.frozen
class Address:
    """One broker or proxy: host, port, and whether TLS is spoken there. `str()` is `host:port`."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_service_url(url: str) -> list[Address]:
    """The addresses that a service URL names, in order; InvalidConfiguration says what is wrong with a bad one."""
    validate_text("service_url", url)
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        hint = "write pulsar://host:6650, pulsar+ssl://host:6651, or several hosts separated by commas"
        if scheme in ("http", "https"):
            hint = "this client looks topics up over the binary port: " + hint
        raise InvalidConfiguration(f"not a Pulsar service URL: {url!r}", hint=hint)
    return [_address(scheme, part, url) for part in rest.rstrip("/").split(",")]


def _address(scheme: str, part: str, url: str) -> Address:
    try:
        split = urlsplit(f"//{part.strip()}")
        host, port = split.hostname, split.port
    except ValueError as error:
        raise InvalidConfiguration(f"bad host or port in service URL {url!r}", hint=str(error)) from None
    if not host or split.path or split.username is not None:
        raise InvalidConfiguration(f"bad host {part!r} in service URL {url!r}", hint="write host:port without path or user")
    return Address(host, port or DEFAULT_PORTS[scheme], scheme == "pulsar+ssl")
