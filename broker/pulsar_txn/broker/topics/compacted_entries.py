"""Entries as compaction sees them: keys, and whether there is a payload; and an entry with some of its messages taken out."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.compression import compress, decompress
from pulsar_txn.wire.entries import encode_entry, read_metadata, split_entry
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

CHUNK: Final[Position] = (-2, -2)
"""In place of a position: the newest message of a key is the one in these chunks."""

Newest: TypeAlias = tuple[Position, int | bytes | None]
"""Place of a message: its entry, and its index in a batch (None: no batch); or CHUNK and the uuid of its chunks."""

_SIZE: Final = struct.Struct(">I")
_MAX_BATCH_BYTES: Final = 64 << 20


class Chunk(NamedTuple):
    """Chunk of a message that an entry is."""

    uuid: bytes
    is_last: bool


Found: TypeAlias = tuple[str | None, int | None, bool, Chunk | None]
"""`(key, index in the batch, whether there is a payload, chunk)` of one message."""


def keys_of(entry: bytes) -> Iterator[Found]:
    """The messages of an entry; nothing for a batch that cannot be looked into, which is kept as it is."""
    metadata = read_metadata(entry)
    if not metadata.HasField("num_messages_in_batch"):
        size = len(split_entry(entry, verify=False)[1])
        if metadata.HasField("uncompressed_size"):
            size = metadata.uncompressed_size
        yield _key(metadata), None, size > 0 and not metadata.null_value, _chunk(metadata)
        return
    batch = _batch(metadata, entry)
    if batch is not None:
        messages = decode_batch(batch, metadata.num_messages_in_batch)
        for index, (payload, _, key, _, _, _, null_value, compacted_out, _) in enumerate(messages):
            if not compacted_out:
                yield key, index, len(payload) > 0 and not null_value, None


def reduced(position: Position, entry: bytes, newest: Mapping[str, Newest], unfinished: set[bytes]) -> bytes | None:
    """The entry with the messages that are the newest of their keys; None when it has no such message.

    Places of a batch stay: what is taken out leaves an empty message that says so, for acknowledgements count places.
    """
    metadata = read_metadata(entry)
    if not metadata.HasField("num_messages_in_batch"):
        key, chunk = _key(metadata), _chunk(metadata)
        if chunk is not None:
            kept = chunk.uuid in unfinished or (key is not None and newest.get(key) == (CHUNK, chunk.uuid))
        else:
            kept = key is not None and newest.get(key) == (position, None)
        return entry if kept else None
    batch = _batch(metadata, entry)
    if batch is None:
        return entry
    stays = {
        index
        for key, index, _, _ in keys_of(entry)
        if key is not None and index is not None and newest.get(key) == (position, index)
    }
    if len(stays) == metadata.num_messages_in_batch:
        return entry
    if not stays:
        return None
    try:
        return _with_places(metadata, batch, stays)
    except DecodeError:  # there is something in it that only protobuf minds
        return entry


def _key(metadata: pb.MessageMetadata) -> str | None:
    return metadata.partition_key if metadata.HasField("partition_key") else None


def _chunk(metadata: pb.MessageMetadata) -> Chunk | None:
    if not metadata.HasField("uuid") or metadata.num_chunks_from_msg <= 1:
        return None
    return Chunk(metadata.uuid.encode(), metadata.chunk_id >= metadata.num_chunks_from_msg - 1)


def _batch(metadata: pb.MessageMetadata, entry: bytes) -> bytes | None:
    """The payload of a batch, not compressed; None when it is encrypted, or nothing that can be read."""
    if metadata.encryption_keys:
        return None
    payload = split_entry(entry, verify=False)[1]
    if not metadata.compression:
        data = bytes(payload)
    else:
        try:
            data = decompress(metadata.compression, payload, metadata.uncompressed_size, max_size=_MAX_BATCH_BYTES)
        except WireError:
            return None
    try:
        decode_batch(data, metadata.num_messages_in_batch)
    except WireError:
        return None
    return data


def _with_places(metadata: pb.MessageMetadata, batch: bytes, stays: set[int]) -> bytes:
    parts: list[bytes] = []
    place = 0
    for index in range(metadata.num_messages_in_batch):
        begin = place + _SIZE.size
        body = begin + _SIZE.unpack_from(batch, place)[0]
        single = pb.SingleMessageMetadata.FromString(batch[begin:body])
        place = body + single.payload_size
        payload = batch[body:place] if index in stays else b""
        if index not in stays:
            single.payload_size, single.compacted_out = 0, True
        raw = single.SerializeToString()
        parts += (_SIZE.pack(len(raw)), raw, payload)
    data = b"".join(parts)
    if metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(data)
    return encode_entry(metadata, compress(metadata.compression, data) if metadata.compression else data)
