"""The decorator of values that are made in large numbers: requests, Steps, effects, headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs

T = TypeVar("T")

if TYPE_CHECKING:
    from attrs import frozen as value
else:

    def value(cls: type[T]) -> type[T]:
        """`attrs.frozen` for the type checker; at run time equal, hashed and slotted alike, but its fields are simply set.

        Frozen instances cost about four times as much to make, and a transaction makes forty of them on its way.
        """
        return attrs.define(cls, unsafe_hash=True)


__all__ = ["value"]
