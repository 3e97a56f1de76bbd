"""Frames that are almost right, for the fuzzing of both ends of the protocol."""

from __future__ import annotations

import random
from typing import Final

INTERESTING: Final = (b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80" * 10)


def mutate(frame: bytes, rnd: random.Random) -> bytes:
    """One or two changes; mostly with sizes that still fit, so that more than the frame reader is tried."""
    body = bytearray(frame)
    for _ in range(1 if rnd.random() < 0.7 else 2):
        at = rnd.randrange(4, len(body))
        kind = rnd.random()
        if kind < 0.5:
            body[at] = rnd.randrange(256)
        elif kind < 0.7:
            body[at : at + 1] = INTERESTING[rnd.randrange(len(INTERESTING))]
        elif kind < 0.85 and len(body) > 6:
            del body[at : at + rnd.randrange(1, 4)]
        else:
            body[at:at] = rnd.randbytes(rnd.randrange(1, 5))
        if len(body) < 9:
            return bytes(body)
    if rnd.random() < 0.97:
        body[:4] = (len(body) - 4).to_bytes(4)
    return bytes(body)
