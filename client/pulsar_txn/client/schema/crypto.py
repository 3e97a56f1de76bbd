"""End-to-end encryption: payloads leave encrypted and are readable only with a private key that no broker has.

As in Pulsar's other clients: a data key (AES-256-GCM) encrypts payloads after their compression, and travels in each
entry's metadata, wrapped once per named public key (RSA-OAEP). What is not the payload stays readable: keys of messages
that are unbatched, properties of those, times, producer names.

The ciphers are `cryptography`'s (extra `encryption`). The random source comes from the runtime.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs

from pulsar_txn.client.errors import CryptoError
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.schema.base import need
from pulsar_txn.wire import pulsar_pb2 as pb

logger = logging.getLogger("pulsar_txn.client.crypto")

PemSource: TypeAlias = "str | Path | bytes | Callable[[str, Mapping[str, str]], bytes]"
_NONE: Final[Mapping[str, str]] = {}

DATA_KEY_BITS: Final = 256
DATA_KEY_SECONDS: Final = 4 * 3600.0
"""Time for which a producer uses one data key, as in Pulsar's other clients."""

DATA_KEY_MESSAGES: Final = 2**31
"""Entries per data key at most: nonces are random, and AES-GCM must not see one twice (NIST SP 800-38D, 8.3)."""

RETRY_SECONDS: Final = 60.0
"""Time for which the old data key stays in use when a new one could not be wrapped."""

_NONCE_BYTES: Final = 12
_KEPT_DATA_KEYS: Final = 1000


class CryptoFailureAction(enum.Enum):
    """Action of a consumer on a message that it cannot decrypt.

    FAIL leaves it unacknowledged and hands out the next (a cumulative acknowledgement after it takes it along), DISCARD
    acknowledges it unseen, CONSUME hands it out as it came: one message per entry, `data` encrypted and compressed,
    `encryption_context` says how.
    """

    FAIL = "fail"
    DISCARD = "discard"
    CONSUME = "consume"


CryptoFailureActionName: TypeAlias = Literal["fail", "discard", "consume"]
"""Names of CryptoFailureAction that `subscribe` takes as well."""


class KeyComing(Exception):  # noqa: N818 - control flow, not an error
    """Raised by `CryptoKeys.private_key`: the key is being fetched, `answers` are done when it is time to ask again."""

    def __init__(self, *answers: asyncio.Future[Any]) -> None:
        super().__init__("the key is being fetched")
        self.answers = answers


class CryptoKeys(Protocol):
    """Source of keys. Must not block for long; whatever it raises becomes a CryptoError, but `KeyComing`."""

    def public_key(self, name: str, /) -> tuple[bytes, Mapping[str, str]]:
        """The public key of this name as PEM, and what shall travel with the wrapped data key."""
        ...

    def private_key(self, name: str, metadata: Mapping[str, str], /) -> bytes:
        """The private key of this name as PEM; `metadata` travelled with the wrapped data key."""
        ...


@attrs.frozen
class PemKeys:
    """Keys as PEM: the path of a file, the bytes themselves, or a function `(name, metadata) -> bytes`.

    Files and functions are asked again for every data key. A side that is not needed is left out. Out of `repr`.
    """

    public: PemSource | None = attrs.field(default=None, repr=False, kw_only=True)
    private: PemSource | None = attrs.field(default=None, repr=False, kw_only=True)

    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        """The one public key, or what the function says for this name."""
        return _pem(self.public, "public", name, _NONE), _NONE

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """The one private key, or what the function says for this name."""
        return _pem(self.private, "private", name, metadata)


def _pem(source: PemSource | None, side: str, name: str, metadata: Mapping[str, str]) -> bytes:
    if source is None:
        raise CryptoError(f"there is no {side} key {name!r}", hint=f"give PemKeys({side}=…)")
    if isinstance(source, bytes):
        return source
    return source(name, metadata) if callable(source) else Path(source).read_bytes()


@attrs.frozen
class EncryptedKey:
    """A data key wrapped with one public key, and what travels with it."""

    value: bytes
    metadata: Mapping[str, str]


@attrs.frozen
class EncryptionContext:
    """Encryption of an entry. `decryption_failed`: its message was handed out as it came."""

    keys: Mapping[str, EncryptedKey]
    param: bytes
    algorithm: str
    compression: int
    uncompressed_size: int
    batch_size: int
    decryption_failed: bool


def encryption_context(metadata: pb.MessageMetadata, *, decryption_failed: bool) -> EncryptionContext | None:
    """Read what metadata says of encryption; None when there was none."""
    if not metadata.encryption_keys:
        return None
    return EncryptionContext(
        {key.key: EncryptedKey(key.value, _pairs(key)) for key in metadata.encryption_keys},
        metadata.encryption_param,
        metadata.encryption_algo,
        int(metadata.compression),
        metadata.uncompressed_size,
        metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0,
        decryption_failed,
    )


def _pairs(key: pb.EncryptionKeys) -> dict[str, str]:
    return {pair.key: pair.value for pair in key.metadata}


class _Ciphers:
    """The few things of `cryptography` that are needed."""

    def __init__(self) -> None:
        self.aes = need("cryptography.hazmat.primitives.ciphers.aead", "encryption").AESGCM
        self.serialization = need("cryptography.hazmat.primitives.serialization", "encryption")
        self._rsa = need("cryptography.hazmat.primitives.asymmetric.rsa", "encryption")
        padding = need("cryptography.hazmat.primitives.asymmetric.padding", "encryption")
        hashes = need("cryptography.hazmat.primitives.hashes", "encryption")
        # SHA-1 is what all of Pulsar's clients use here; OAEP does not rest on its resistance to collisions.
        self._oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)

    def wrap(self, pem: bytes, data_key: bytes) -> bytes:
        key = self.serialization.load_pem_public_key(pem)
        if not isinstance(key, self._rsa.RSAPublicKey):
            raise CryptoError(f"an RSA key is needed, not {type(key).__name__}")
        return bytes(key.encrypt(data_key, self._oaep))

    def unwrap(self, pem: bytes, wrapped: bytes) -> bytes:
        key = self.serialization.load_pem_private_key(pem, None)
        if not isinstance(key, self._rsa.RSAPrivateKey):
            raise CryptoError(f"an RSA key is needed, not {type(key).__name__}")
        return bytes(key.decrypt(wrapped, self._oaep))


class Encryptor:
    """A producer's side.

    Raises CryptoError when a public key cannot be had; later such an error keeps the old data key in use for a minute.
    """

    def __init__(
        self,
        names: Sequence[str],
        keys: CryptoKeys,
        runtime: Runtime,
    ) -> None:
        self._ciphers = _Ciphers()
        self._names = names
        self._keys = keys
        self._runtime = runtime
        self._good_until = 0.0
        self._left = 0
        self._new_data_key()

    def _new_data_key(self) -> None:
        data_key = self._runtime.secret(DATA_KEY_BITS // 8)
        wrapped = []
        for name in self._names:
            try:
                pem, metadata = self._keys.public_key(name)
                value = self._ciphers.wrap(pem, data_key)
            except Exception as error:  # the program's function, a file, or no PEM
                raise _failed(f"the public key {name!r} cannot be used", error) from error
            pairs = [pb.KeyValue(key=key, value=text) for key, text in metadata.items()]
            wrapped.append(pb.EncryptionKeys(key=name, value=value, metadata=pairs))
        self._wrapped = wrapped
        self._cipher = self._ciphers.aes(data_key)
        self._good_until = self._runtime.monotonic() + DATA_KEY_SECONDS
        self._left = DATA_KEY_MESSAGES

    def seal(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        """The payload encrypted; `metadata` says how."""
        if self._runtime.monotonic() >= self._good_until or not self._left:
            self._renew()
        self._left -= 1
        nonce = self._runtime.secret(_NONCE_BYTES)
        metadata.encryption_keys.extend(self._wrapped)
        metadata.encryption_param = nonce
        return bytes(self._cipher.encrypt(nonce, payload, None))

    def _renew(self) -> None:
        try:
            self._new_data_key()
        except CryptoError as error:
            if not self._left:
                raise
            logger.warning("a new data key could not be wrapped, the old one stays in use: %s", error)
            self._good_until = self._runtime.monotonic() + RETRY_SECONDS


class Decryptor:
    """A consumer's side; keeps unwrapped data keys, so that a private key is used once per data key.

    Without `keys` nothing can be decrypted.
    """

    def __init__(self, keys: CryptoKeys | None) -> None:
        self._ciphers = None if keys is None else _Ciphers()
        self._keys = keys
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def open(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The payload decrypted with the first of its keys that we have. CryptoError says what went wrong with each.

        KeyComing when none does at once, and some are being fetched.
        """
        if self._keys is None or self._ciphers is None:
            raise CryptoError("the message is encrypted", hint="give the consumer crypto_keys=")
        reasons = []
        coming: list[asyncio.Future[Any]] = []
        for key in metadata.encryption_keys:
            try:
                return bytes(
                    self._cipher(self._keys, self._ciphers, key).decrypt(metadata.encryption_param, bytes(payload), None)
                )
            except KeyComing as fetching:
                coming += fetching.answers
            except Exception as error:  # noqa: BLE001 - what the program's keys raise is one more reason
                reasons.append(str(_failed(f"key {key.key!r}", error)))
        if coming:
            raise KeyComing(*coming)
        raise CryptoError("the message cannot be decrypted: " + "; ".join(reasons))

    def _cipher(self, keys: CryptoKeys, ciphers: _Ciphers, key: pb.EncryptionKeys) -> Any:
        cipher = self._known.get(key.value)
        if cipher is None:
            pem = keys.private_key(key.key, _pairs(key))
            cipher = ciphers.aes(ciphers.unwrap(pem, key.value))
            if len(self._known) >= _KEPT_DATA_KEYS:
                self._known.popitem(last=False)
            self._known[key.value] = cipher
        return cipher


def _failed(what: str, error: Exception) -> CryptoError:
    reason = error.message if isinstance(error, CryptoError) else repr(error)
    return CryptoError(f"{what}: {reason}")
