"""The names with which requests to a coordinator beside clusters end, read once for all transactions that have the same.

Such a request begins with numbers, which differ, and ends with names, which are the same bytes again and again: the
participants of a NEW_TXN, the topics or subscriptions of an ADD_PARTITION_TO_TXN or ADD_SUBSCRIPTION_TO_TXN with their
cluster. Protobuf reads the names, and what it said is remembered by their bytes. What is longer than `MAX_TAIL_BYTES` is
not remembered, and not read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from . import pulsar_pb2 as pb
from ._protobuf import check_text
from .errors import MalformedFrame
from .varints import NUMBER

FirstParticipant: TypeAlias = tuple[str, str | None, str]
"""`(topic, subscription, cluster)`; `subscription` None: the topic itself. `cluster` may be empty."""

MAX_TAIL_BYTES: Final = 2048
"""Of which 1,024 are kept, so that a stranger's names take 2 MiB at most."""

_BODY: Final = 9
"""Offset of a body of less than 128 bytes; one of less than 2**14 bytes begins one byte later."""


def beginning(shape: bytes) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """A matcher of how a body begins: called with a frame, and where its body begins. See `hot._shape`."""
    return re.compile(shape.replace(b"N", NUMBER), re.DOTALL).match


def body_start(frame: bytes, prefix: bytes) -> int | None:
    """Beginning of the body in a frame that is put together as usual and ends with the body; None for another one.

    `prefix`: the type, and the tag of the body.
    """
    if len(frame) <= _BODY or frame[4:8] != prefix or int.from_bytes(frame[:4]) != len(frame) - 4:
        return None
    size, start = frame[8], _BODY
    if size > 127:
        if frame[9] > 127:
            return None
        size, start = size + frame[9] * 128 - 128, _BODY + 1
    return start if start + size == len(frame) else None


@lru_cache(1024)
def participants_of(tail: bytes) -> tuple[FirstParticipant, ...] | None:
    """The participants with which a NEW_TXN ends; None when the bytes are not that alone."""
    body = _read(pb.CommandNewTxn, tail, {"participants"})
    if body is None or not all(each.IsInitialized() for each in body.participants):
        return None
    return tuple(
        [(each.topic, each.subscription if each.HasField("subscription") else None, each.cluster) for each in body.participants]
    )


@lru_cache(1024)
def topics_of(tail: bytes) -> tuple[tuple[str, ...], str] | None:
    """The topics and the cluster with which an ADD_PARTITION_TO_TXN ends; None when the bytes are not that alone."""
    body = _read(pb.CommandAddPartitionToTxn, tail, {"partitions", "cluster"})
    return None if body is None else (tuple(body.partitions), body.cluster)


@lru_cache(1024)
def subscriptions_of(tail: bytes) -> tuple[tuple[tuple[str, str], ...], str] | None:
    """As `topics_of`, of ADD_SUBSCRIPTION_TO_TXN: (topic, subscription)."""
    body = _read(pb.CommandAddSubscriptionToTxn, tail, {"subscription", "cluster"})
    if body is None or not all(each.IsInitialized() for each in body.subscription):
        return None
    return tuple([(each.topic, each.subscription) for each in body.subscription]), body.cluster


def _read(kind: Any, tail: bytes, fields: set[str]) -> Any:
    try:
        body = kind.FromString(tail)
        check_text(body)
    except (DecodeError, MalformedFrame):
        return None
    return body if {field.name for field, _ in body.ListFields()} <= fields else None
