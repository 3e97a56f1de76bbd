"""TLS to brokers: whom we trust, who we are, and whether names are checked (they are, unless told otherwise)."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import attrs
from attrs.validators import optional

from pulsar_txn.client._validation import validate_flag, validate_path
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.authentication import Authentication, TlsAuthentication


def _path(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    validate_path(f"tls_{attribute.name}", value)


def _flag(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    validate_flag(f"tls_{attribute.name}", value)


@attrs.frozen(kw_only=True)
class TlsFiles:
    """PEM files and checks. Without `trust_certs_file` the system's roots are trusted."""

    trust_certs_file: str | Path | None = attrs.field(default=None, validator=optional(_path))
    certificate_file: str | Path | None = attrs.field(default=None, validator=optional(_path))
    key_file: str | Path | None = attrs.field(default=None, validator=optional(_path))
    validate_hostname: bool = attrs.field(default=True, validator=_flag)
    allow_insecure_connection: bool = attrs.field(default=False, validator=_flag)


def make_context(files: TlsFiles, authentication: Authentication | None = None) -> ssl.SSLContext:
    """A client's context. A certificate of TlsAuthentication goes before that of `files`.

    InvalidConfiguration, naming the file, when one cannot be read or certificate and key do not belong together.
    """
    certificate, key = files.certificate_file, files.key_file
    if isinstance(authentication, TlsAuthentication) and authentication.certificate_file is not None:
        certificate, key = authentication.certificate_file, authentication.key_file
    try:
        context = ssl.create_default_context(cafile=files.trust_certs_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfiguration(f"{files.trust_certs_file} holds no trusted certificates: {error}") from None
    if certificate is not None:
        try:
            # An empty password keeps OpenSSL from asking the terminal for that of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfiguration(
                f"the certificate {certificate} with the key {key or 'in the same file'} cannot be used: {error}",
                hint="both are PEM files; a key with a pass phrase needs a tls_context of your own",
            ) from None
    elif key is not None:
        raise InvalidConfiguration(f"the key {key} has no certificate", hint="also give the certificate's file")
    if not files.validate_hostname or files.allow_insecure_connection:
        context.check_hostname = False
    if files.allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    return context
