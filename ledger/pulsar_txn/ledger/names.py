"""Names of logs and cursors, and paths of the metadata store: the same in every provider.

Code that is given a name asks here before anything has moved: a record that cannot be written must not reach a commit
group, whose other members are somebody else's.
"""

from __future__ import annotations

from typing import Final

from pulsar_txn.ledger.protocols import NameRefused

MAX_NAME_BYTES: Final = 0xFFFF
"""In UTF-8; the journal writes the length of a name in two bytes."""

_SHOWN: Final = 60


def check_name(kind: str, name: str) -> None:
    """NameRefused for a name that cannot be kept; `kind` says what it is the name of."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise NameRefused(f"{kind} {name[:_SHOWN]!r} cannot be written in UTF-8 ({error.reason}); choose another") from error
    if size > MAX_NAME_BYTES:
        raise NameRefused(
            f"{kind} {name[:_SHOWN]!r}… has {size} bytes, at most {MAX_NAME_BYTES} are kept; choose a shorter one"
        )
