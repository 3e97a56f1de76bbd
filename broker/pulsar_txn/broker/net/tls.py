"""The TLS of a listener, by Pulsar's configuration keys."""

from __future__ import annotations

import ssl
from typing import Protocol

from pulsar_txn.broker.base.reloading import Reloaded
from pulsar_txn.broker.base.settings import ConfigError


class TlsKeys(Protocol):
    """The keys of a listener with TLS."""

    @property
    def tls_certificate_file_path(self) -> str | None:
        """PEM."""

    @property
    def tls_key_file_path(self) -> str | None:
        """PEM."""

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """Authorities of the clients' certificates."""

    @property
    def tls_crl_file_path(self) -> str | None:
        """PEM with the revocation lists of those authorities."""

    @property
    def tls_require_trusted_client_cert_on_connect(self) -> bool:
        """True if a client needs one."""

    @property
    def tls_cert_refresh_check_duration_sec(self) -> int:
        """Between two looks whether the files have changed; 0: at each connection."""


def reloaded_tls_of(keys: TlsKeys) -> Reloaded[ssl.SSLContext]:
    """The same as `tls_of`, for connections that come when the files are others. ConfigError."""
    named = (keys.tls_certificate_file_path, keys.tls_key_file_path, keys.tls_trust_certs_file_path, keys.tls_crl_file_path)
    return Reloaded(lambda: tls_of(keys), [each for each in named if each], keys.tls_cert_refresh_check_duration_sec)


def tls_of(keys: TlsKeys) -> ssl.SSLContext:
    """The TLS of a listener: 1.2 or newer, with or without certificates of clients. ConfigError."""
    if not keys.tls_certificate_file_path or not keys.tls_key_file_path:
        raise ConfigError("a port with TLS needs tlsCertificateFilePath and tlsKeyFilePath")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # An empty password keeps OpenSSL from asking the terminal for that of an encrypted key.
        context.load_cert_chain(keys.tls_certificate_file_path, keys.tls_key_file_path, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tlsCertificateFilePath with tlsKeyFilePath cannot be used: {error}") from None
    if keys.tls_trust_certs_file_path:
        try:
            context.load_verify_locations(keys.tls_trust_certs_file_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tlsTrustCertsFilePath cannot be used: {error}") from None
        required = keys.tls_require_trusted_client_cert_on_connect
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        if keys.tls_crl_file_path:
            _load_crl(context, keys.tls_crl_file_path)
    elif keys.tls_crl_file_path:
        raise ConfigError("tlsCrlFilePath needs tlsTrustCertsFilePath: a list is of one of those authorities")
    elif keys.tls_require_trusted_client_cert_on_connect:
        raise ConfigError("tlsRequireTrustedClientCertOnConnect=true needs tlsTrustCertsFilePath")
    return context


def _load_crl(context: ssl.SSLContext, path: str) -> None:
    """Look up certificates of clients in the list of their authority. One that is missing or out of date lets nobody in."""
    before = context.cert_store_stats()
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tlsCrlFilePath cannot be used: {error}") from None
    after = context.cert_store_stats()
    if not after["crl"] or after["x509"] != before["x509"]:
        raise ConfigError("tlsCrlFilePath must have revocation lists (PEM), and no certificates")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
