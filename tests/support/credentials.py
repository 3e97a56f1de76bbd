"""Tokens, certificates, and raw clients that show them; for servers that check who connects."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from raw_client import RawClient

from pulsar_txn.wire.frames import command

SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS: dict[str, Any] = {
    "authentication_enabled": True,
    "authentication_providers": "token",
    "token_secret_key": base64.b64encode(SECRET).decode(),
}
"""Keys of a configuration, as its fields."""


def token(role: str | None = "ann", key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token of a role."""
    return jwt.encode(({} if role is None else {"sub": role}) | claims, key, algorithm=algorithm)


def _part(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def unsigned() -> str:
    """The token of CVE-2021-22160: it says that it needs no signature."""
    parts = [_part(json.dumps(each).encode()).decode() for each in ({"alg": "none"}, {"sub": "ann"})]
    return ".".join([*parts, ""])


def signed_with(public: bytes) -> str:
    """A token whose secret is somebody's public key, which everybody knows."""
    head, body = (_part(json.dumps(each).encode()) for each in ({"alg": "HS256"}, {"sub": "ann"}))
    signature = hmac.new(public, head + b"." + body, hashlib.sha256).digest()
    return (head + b"." + body + b"." + _part(signature)).decode()


def nested() -> str:
    """A token whose head is as deep as it fits, to be read before any signature is."""
    return b".".join([_part(b"[" * 12_000), _part(b"{}"), b"x"]).decode()


def pem(key: Any) -> bytes:
    """The public half of a key."""
    public: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public


class Speaker(RawClient):
    """A raw client that says CONNECT with credentials. `server` makes connections: a broker, or a coordinator service."""

    by_another_address = False
    """Ask for the address that the server advertises, as clients do that came by another one."""

    def __init__(self, server: Any, data: str | bytes = b"", method: str = "token", **fields: Any) -> None:
        if self.by_another_address:
            server.service_url = server.service_url or "pulsar://server.test:6650"
            fields.setdefault("proxy_to_broker_url", server.service_url.partition("://")[2])
        self._connect = {
            "auth_method_name": method,
            "auth_data": data.encode() if isinstance(data, str) else data,
            **fields,
        }
        super().__init__(server)

    def raw(self, data: bytes) -> None:
        if not self.connection.connected and not self._reader.buffered and b"raw" in data and self._connect:
            fields, self._connect = self._connect, {}
            data = command("connect", client_version="raw", protocol_version=21, **fields)
        super().raw(data)

    @property
    def refused(self) -> str:
        """Why it was sent away; empty when it was not."""
        errors = [
            body.message for bodies in self._answers.values() for body in bodies if body.DESCRIPTOR.name == "CommandError"
        ]
        return errors[0] if errors and self.pipe.closed else ""


class Papers:
    """Certificates of one authority in a folder: `server.pem`, `server.key`, `ca.pem`, and one for each role that is asked for.

    Keys are RSA in PKCS 8, which Java reads as well.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA(key_type=trustme.KeyType.RSA)
        self.trust = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.trust)
        self.server = self._write("server", self._authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.RSA))

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of TLS of a configuration, as its fields."""
        return {
            "tls_certificate_file_path": str(self.server[0]),
            "tls_key_file_path": str(self.server[1]),
            "tls_trust_certs_file_path": str(self.trust),
        }

    def of(self, role: str | None) -> tuple[Path, Path]:
        """Certificate and key of a client; None: the certificate has no common name."""
        name = role or "nameless"
        issued = self._authority.issue_cert(f"{name}@example.org", common_name=role, key_type=trustme.KeyType.RSA)
        return self._write(name, issued)

    def revocation_list(self, *revoked: Path, days: int = 1, by: Papers | None = None) -> Path:
        """The authority's list (CRL), which is new for so many days, with the certificates in these files."""
        signer = by or self
        authority = x509.load_pem_x509_certificate(signer.trust.read_bytes())
        now = dt.datetime.now(dt.UTC)
        built = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        built = built.last_update(now - dt.timedelta(days=30)).next_update(now + dt.timedelta(days=days))
        for path in revoked:
            serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            built = built.add_revoked_certificate(one.build())
        key: Any = load_pem_private_key(signer._authority.private_key_pem.bytes(), None)
        list_file = self.folder / "crl.pem"
        list_file.write_bytes(built.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return list_file

    def _write(self, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        private = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key
