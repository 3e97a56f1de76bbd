"""Checks of arguments: wrong types are ValueErrors, as programs for the official client expect; dead ones are warned of."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Final

_OURS: Final = "pulsar_txn.compat"


def check(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """ValueError unless `value` is of this type."""
    if not isinstance(value, kind):
        expected = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
        raise ValueError(f"{name} must be of type {expected}, not {type(value).__name__}")  # noqa: TRY004 - the official client's class


def check_optional(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """As `check`, and None will do."""
    if value is not None:
        check(kind, value, name)


def dead(name: str, value: Any, default: Any, why: str) -> None:
    """Warn of a parameter that is accepted and has no effect, when it was given; the warning is the program's, not ours."""
    if value == default:
        return
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{name} has no effect: {why}", DeprecationWarning, stacklevel=level)
