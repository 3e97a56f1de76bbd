"""End-to-end encryption: keys that no broker has. It needs the extra `encryption`."""

from pulsar_txn.client.schema.crypto import CryptoFailureAction, CryptoKeys, EncryptionContext, PemKeys

__all__ = [
    "CryptoFailureAction",
    "CryptoKeys",
    "EncryptionContext",
    "PemKeys",
]
