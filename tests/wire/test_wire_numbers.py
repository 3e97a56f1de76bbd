"""The table from varints to numbers."""

from __future__ import annotations

import random

from pulsar_txn.wire.varints import LAST, NUMBERS, varint


def test_numbers_that_were_kept_are_right_are_few_and_push_no_small_one_out() -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        number = rng.getrandbits(rng.choice((7, 14, 17, 20, 21, 28, 41, 42, 63, 64)))
        assert NUMBERS[varint(number)] == NUMBERS[varint(number)] == number
        assert len(NUMBERS) <= len(LAST) + 4096
    assert [NUMBERS.get(data) for data in LAST] == list(range(len(LAST)))
