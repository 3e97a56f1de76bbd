"""Records of the changes of a cursor, and of its properties; and the base of format 1. Pure, shared by all providers.

    change      a sequence of operations, each one tag byte and its body (see `Changes`), little endian
    properties  count u32 · (length u32, text)*

A change is applied by the same methods that made it, so replaying changes over a base gives an equal state.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import Final

from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.limits import Tally

_I64: Final = struct.Struct("<q")
_U32: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<qq")
_SET: Final = struct.Struct("<qI")
_INDEXES: Final = struct.Struct("<qII")

_MARK, _DELETE, _INDEX, _RESET, _PROPERTIES = b"M", b"D", b"I", b"R", b"P"


class Changes:
    """Changes of one cursor since the last commit group, in order, ready to be encoded.

    Deletes in a row are one operation of 8 bytes each, so an acknowledgement costs a list append.
    """

    __slots__ = ("_deletes", "_parts", "ticket")

    def __init__(self) -> None:
        self.ticket = 0
        """Number of the last change; it goes on over all groups."""
        self._parts: list[bytes] = []
        self._deletes: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._parts or self._deletes)

    def delete(self, entries: Iterable[int]) -> None:
        """Whole entries were acknowledged."""
        self.ticket += 1
        self._deletes.extend(entries)

    def mark_delete_to(self, entry: int) -> None:
        """Everything up to `entry` was acknowledged."""
        self._change(_MARK + _I64.pack(entry))

    def delete_indexes(self, entry: int, acked: int, batch_size: int) -> None:
        """Batch indexes were acknowledged."""
        data = _int_bytes(acked)
        self._change(_INDEX + _INDEXES.pack(entry, batch_size, len(data)) + data)

    def reset(self, entry: int) -> None:
        """The cursor was put to `entry`."""
        self._change(_RESET + _I64.pack(entry))

    def put_properties(self, properties: dict[str, str]) -> None:
        """The properties were replaced."""
        self._change(_PROPERTIES + encode_properties(properties))

    def take(self) -> bytes:
        """The encoded changes; the collection is empty afterwards."""
        self._encode_deletes()
        data = b"".join(self._parts)
        self._parts = []
        return data

    def _change(self, part: bytes) -> None:
        self.ticket += 1
        self._encode_deletes()
        self._parts.append(part)

    def _encode_deletes(self) -> None:
        if self._deletes:
            self._parts.append(_DELETE + _U32.pack(len(self._deletes)) + array("q", self._deletes).tobytes())
            self._deletes = []


def apply_changes(state: CursorState, data: bytes, upto: int = END) -> int:
    """Apply encoded changes to `state`, which is complete up to the entry `upto`; returns up to where it is afterwards.

    Acknowledgements of single entries after `upto` are left out: the piece to come holds them. ValueError when the bytes
    are none.
    """
    at = 0
    try:
        while at < len(data):
            at, upto = _apply_one(state, data, at, upto)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cursor change: {error}") from error
    return upto


def _apply_one(state: CursorState, data: bytes, at: int, upto: int) -> tuple[int, int]:
    tag, at = data[at : at + 1], at + 1
    if tag == _DELETE:
        (count,) = _U32.unpack_from(data, at)
        end = int(at + 4 + 8 * count)
        entries = array("q", data[at + 4 : end])
        if len(entries) != count:
            raise ValueError("not a cursor change: cut short")
        delete = state.delete
        for entry in entries:
            if entry <= upto:
                delete(entry)
        return end, upto
    if tag == _INDEX:
        entry, batch_size, size = _INDEXES.unpack_from(data, at)
        end = int(at + _INDEXES.size + size)
        if entry <= upto:
            state.delete_indexes(entry, int.from_bytes(data[end - size : end], "little"), batch_size)
        return end, upto
    if tag == _PROPERTIES:
        properties, at = decode_properties(data, at)
        state.put_properties(properties)
        return at, upto
    entry = int(_I64.unpack_from(data, at)[0])
    if tag == _MARK:
        state.mark_delete_to(entry)
    elif tag == _RESET:
        state.reset(entry)
        upto = END  # nothing after the mark: nothing is missing
    else:
        raise ValueError(f"not a cursor change: tag {tag!r}")
    return at + 8, upto


def encode_base(state: CursorState, max_bytes: int) -> tuple[bytes, int]:
    """Properties and the first piece of a state, and the entry up to which that is everything (END: all of it)."""
    piece, upto = state.piece(state.mark, max_bytes)
    return encode_properties(state.properties) + piece, upto


def decode_base(data: bytes, at: int = 0, tally: Tally | None = None) -> tuple[CursorState, int]:
    """The inverse of `encode_base`; ValueError when the bytes are invalid."""
    state = CursorState(tally=tally)
    try:
        properties, at = decode_properties(data, at)
        state.put_properties(properties)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cursor base: {error}") from error
    upto, at = state.add_piece(data, at)
    if at != len(data):
        raise ValueError(f"not a cursor base: {len(data) - at} bytes too many")
    return state, upto


def decode_old_base(data: bytes, tally: Tally | None = None) -> CursorState:
    """A base of format 1: mark, ranges, ack sets, properties. ValueError when the bytes are invalid."""
    try:
        state = CursorState(_I64.unpack_from(data)[0], tally=tally)
        (ranges,) = _U32.unpack_from(data, 8)
        at = 12
        for _ in range(ranges):
            state.add_range(*_PAIR.unpack_from(data, at))
            at += 16
        (sets,) = _U32.unpack_from(data, at)
        at += 4
        for _ in range(sets):
            entry, size = _SET.unpack_from(data, at)
            at += _SET.size + size
            state.put_ack_set(entry, int.from_bytes(data[at - size : at], "little"))
        properties, at = decode_properties(data, at)
        state.put_properties(properties)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"not a cursor base: {error}") from error
    if at != len(data):
        raise ValueError(f"not a cursor base: {len(data) - at} bytes too many")
    return state


def encode_properties(properties: dict[str, str]) -> bytes:
    """Text pairs with their lengths, in the order of the dict."""
    parts = [_U32.pack(len(properties))]
    for pair in properties.items():
        for text in pair:
            data = text.encode()
            parts += (_U32.pack(len(data)), data)
    return b"".join(parts)


def decode_properties(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """The properties at `at`, and the offset after them."""
    (count,) = _U32.unpack_from(data, at)
    at += 4
    texts: list[str] = []
    for _ in range(2 * count):
        (size,) = _U32.unpack_from(data, at)
        at += 4 + size
        if at > len(data):
            raise IndexError("cut short")
        texts.append(data[at - size : at].decode())
    return dict(zip(texts[::2], texts[1::2], strict=True)), at


def _int_bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "little")
