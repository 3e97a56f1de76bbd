"""Images of sent messages that are larger than a slice of a snapshot."""

from __future__ import annotations

import pytest

from pulsar_txn.rm_producer import sent_messages


def test_an_image_of_many_ids_goes_into_several_slices_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_messages, "_NUMBERS_PER_SLICE", 2)
    image = ((1, 2, 3, 4, 5), (6, 7, 8), (9,))
    parts = list(sent_messages._parts("p", image))
    assert [name for name, _ in parts] == ["p"] * 3
    assert tuple(tuple(each for _, part in parts for each in part[at]) for at in range(3)) == image
    assert all(len(column) <= 2 for _, part in parts for column in part)
