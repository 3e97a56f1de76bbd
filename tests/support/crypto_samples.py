"""RSA key pairs as PEM for tests of end-to-end encryption."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Pair(NamedTuple):
    public: bytes
    private: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Both as files: public, private."""
        files = folder / "public.pem", folder / "private.pem"
        for file, data in zip(files, self, strict=True):
            file.write_bytes(data)
        return files


def rsa_pair() -> Pair:
    return _pair(rsa.generate_private_key(65537, 2048))


def ec_pair() -> Pair:
    return _pair(ec.generate_private_key(ec.SECP256R1()))


def _pair(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Pair:
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Pair(public, key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
