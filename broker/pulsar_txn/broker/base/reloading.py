"""Files of a listener that others replace while it runs: certificates, and keys of tokens.

As in Pulsar, whoever needs them looks whether they changed, at most once in `tlsCertRefreshCheckDurationSec`.
What cannot be used is an error in the log, and what was used before stays.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from .settings import ConfigError

_logger = logging.getLogger(__name__)

T = TypeVar("T")
_Stamp: TypeAlias = "tuple[int, int, int] | None"


class Reloaded(Generic[T]):
    """Value that `load` makes of `files`, anew when one of them has changed. `seconds`: between two looks at them.

    Making one raises what `load` raises: ConfigError.
    """

    def __init__(self, load: Callable[[], T], files: Sequence[str], seconds: float) -> None:
        self._load = load
        self._files = tuple(files)
        self._seconds = seconds
        self._looked_at = -math.inf
        self._stamps = self._look()  # before they are read: a change meanwhile is seen at the next look
        self._value = load()

    def get(self, now: float) -> T:
        """The newest that can be used. `now`: seconds, of one clock at each call."""
        if self._files and not 0 <= now - self._looked_at < self._seconds:
            self._looked_at = now
            stamps = self._look()
            if stamps != self._stamps:
                self._stamps = stamps
                self._read_again()
        return self._value

    def _read_again(self) -> None:
        names = ", ".join(self._files)
        try:
            self._value = self._load()
        except ConfigError as error:
            _logger.error(  # noqa: TRY400 - the message says it
                "%s changed and cannot be used (%s); the earlier values stay in force until it is mended", names, error
            )
        else:
            _logger.info("%s changed, and is used from now on", names)

    def _look(self) -> list[_Stamp]:
        return [_stamp(file) for file in self._files]


def _stamp(file: str) -> _Stamp:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
