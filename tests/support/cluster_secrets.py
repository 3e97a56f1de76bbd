"""The secrets of a cluster that checks who connects: an authority, the servers' certificate, and a token for each role."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

SUPERUSERS: Final = ("admin", "broker", "coordinator")
ROLES: Final = (*SUPERUSERS, "app", "other")
_LIFE: Final = dt.timedelta(days=2)
_PEM: Final = serialization.Encoding.PEM


class ClusterSecrets:
    """Files in one folder, written at once. Servers are 127.0.0.1 and localhost."""

    def __init__(self, folder: Path, roles: Iterable[str] = ROLES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = folder / "authority.pem"
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.secret_key = folder / "secret.key"
        self._folder = folder
        secret = secrets.token_bytes(32)
        self.secret_key.write_bytes(secret)
        for role in roles:
            token = jwt.encode({"sub": role}, secret, algorithm="HS256")
            self.token_file(role).write_text(token, encoding="ascii")
        self._write_certificates()

    def token_file(self, role: str) -> Path:
        """Where the token of a role is."""
        return self._folder / f"{role}.jwt"

    def token(self, role: str) -> str:
        """The token of a role."""
        return self.token_file(role).read_text(encoding="ascii")

    def _write_certificates(self) -> None:
        signer, key = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)
        name, issuer = _name("localhost"), _name("authority of a test")
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        of_authority = _certificate(issuer, issuer, signer.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        of_server = _certificate(name, issuer, key.public_key(), hosts)
        self.authority.write_bytes(of_authority.sign(signer, hashes.SHA256()).public_bytes(_PEM))
        self.certificate.write_bytes(of_server.sign(signer, hashes.SHA256()).public_bytes(_PEM))
        plain = serialization.NoEncryption()
        self.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain))  # as brokers want it


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    extension: x509.ExtensionType,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    )
