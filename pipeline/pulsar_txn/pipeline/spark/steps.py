"""The steps of source and sink that a program may watch, for instance to end a process in the middle of one.

A subclass of `PulsarDataSource` sets `on_step = staticmethod(watch)` and is registered in place of it; nothing else calls
anybody. `watch` runs in the process in which the step is reached (a task, or one of Spark's workers beside the driver),
so it must be importable there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """Told of each step by its name, with what is in flight at that moment."""

    def __call__(self, step: str, /, **in_flight: Any) -> None:
        """The step is reached; the query goes on when this returns."""


OnStep: TypeAlias = Watch | None


def reached(on_step: OnStep, step: str, **in_flight: Any) -> None:
    """Tell who watches, if anybody does."""
    if on_step is not None:
        on_step(step, **in_flight)


def reached_before(on_step: OnStep, step: str, work: Callable[[T], None], **in_flight: Any) -> Callable[[T], None]:
    """`work` itself, or with somebody who watches a function that tells them before each call, with its `number` from 0."""
    if on_step is None:
        return work
    number = 0

    def tell(argument: T) -> None:
        nonlocal number
        on_step(step, number=number, **in_flight)
        number += 1
        work(argument)

    return tell
