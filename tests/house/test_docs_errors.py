"""The page of errors has every error of the client, with what is true of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_txn.client import errors
from pulsar_txn.client.errors import PulsarError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
SECTION = re.compile(r"^### (?P<name>\w+)\n\n(?P<marks>[^\n]+)\.\n\n(?P<items>(?:\* [^\n]+\n)+)", re.MULTILINE)
SECTIONS = {match["name"]: match for match in SECTION.finditer(PAGE.read_text(encoding="utf-8"))}


def tree(cls: type[PulsarError] = PulsarError) -> list[type[PulsarError]]:
    own = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    return [cls, *(found for sub in own for found in tree(sub))]


def test_the_page_has_the_errors_of_the_client_and_no_others() -> None:
    assert sorted(SECTIONS) == sorted(cls.__name__ for cls in tree())


@pytest.mark.parametrize("cls", tree(), ids=lambda cls: str(cls.__name__))
def test_an_error_has_a_cause_what_the_client_did_and_what_to_do(cls: type[PulsarError]) -> None:
    items = SECTIONS[cls.__name__]["items"].splitlines()
    assert [item.split(":")[0] for item in items] == ["* Cause", "* The client", "* You"]


@pytest.mark.parametrize("cls", tree(), ids=lambda cls: str(cls.__name__))
def test_what_is_said_of_an_error_is_true(cls: type[PulsarError]) -> None:
    marks = SECTIONS[cls.__name__]["marks"]
    base = cls.__bases__[0].__name__
    expected = [f"{'An' if base[0] in 'EI' else 'A'} {base}"]
    expected += [f"code {int(cls.code)}"] if cls.code is not None else []
    expected += [f"`{flag}`" for flag in ("retriable", "requires_abort", "fatal") if getattr(cls, flag)]
    assert marks.split(", ") == expected
