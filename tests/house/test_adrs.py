"""A record of a decision is short, is named after what it decides, and is found by everything that refers to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = {path.name[:4]: path for path in sorted(FOLDER.glob("[0-9]*.md"))}
MOST_WORDS = 300
KINDS = {".py", ".md", ".toml", ".proto", ".tsv", ".yml"}
HEADER = re.compile(r"# (\d+)\. (.+)\n\nDate: (\d{4}-\d\d-\d\d)\n\nStatus: (accepted|superseded)\n\n(?=## Context\n)")
HEADINGS = ["Context", "Decision", "Consequences"]
VERBS = re.compile(
    r"(Ask|Begin|Decide|End|Fence|Give|Hide|Hold|Keep|Lead|Leave|Let|Limit|Load|Name|Open|"
    r"Prove|Publish|Repeat|Report|Request|Run|Signal|Stage|Store|Write) "
)
"""Imperative verbs of the titles. Add the verb of a new record."""
BY_FILE = re.compile(r"\badr/(\d{4})(-[\w-]+\.md)?((?:`?(?:,| and) `?\d{4}\b)*)")
BY_NUMBER = re.compile(r"(?:\bADRs?|\[[Dd]ecision) (\d{1,2})\b")


def readers() -> Iterator[Path]:
    """Files that may refer to a record."""
    for top in sorted(ROOT.iterdir()):
        if not top.name.startswith("."):
            files = top.rglob("*") if top.is_dir() else [top]
            yield from (path for path in files if path.suffix in KINDS and path != Path(__file__) and path.is_file())


def lost(text: str) -> Iterator[str]:
    """References in a text that lead to no record."""
    for found in BY_FILE.finditer(text):
        for number in (found[1], *re.findall(r"\d{4}", found[3])):
            if number not in RECORDS:
                yield number
        if found[2] and not (FOLDER / (found[1] + found[2])).exists():
            yield found[1] + found[2]
    yield from (number for number in BY_NUMBER.findall(text) if f"{int(number):04}" not in RECORDS)


@pytest.mark.parametrize("path", RECORDS.values(), ids=lambda path: path.name[:4])
def test_a_record_has_a_header_three_parts_and_at_most_300_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    header = HEADER.match(text)
    assert header is not None
    assert int(header[1]) == int(path.name[:4])
    body = text[header.end() :]
    assert re.findall(r"^## (.*)$", body, re.MULTILINE) == HEADINGS
    assert len(body.split()) <= MOST_WORDS


@pytest.mark.parametrize("path", RECORDS.values(), ids=lambda path: path.name[:4])
def test_a_title_is_a_decision_and_names_its_file(path: Path) -> None:
    header = HEADER.match(path.read_text(encoding="utf-8"))
    assert header is not None
    title = header[2]
    assert VERBS.match(title)
    slug = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    assert path.name == f"{int(header[1]):04}-{slug}.md"


def test_the_index_lists_every_record_with_its_title() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    titles = {path.name: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in RECORDS.values()}
    listed = re.findall(r"^\* \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    assert sorted(listed) == sorted((title, name) for name, title in titles.items())


def test_every_reference_leads_to_a_record() -> None:
    found = [f"{path.relative_to(ROOT)}: {each}" for path in readers() for each in lost(path.read_text(encoding="utf-8"))]
    assert found == []


def test_a_reference_to_a_removed_record_is_found() -> None:
    good = RECORDS["0001"].name
    assert list(lost(f"[decision 1](adr/{good}), `docs/adr/0003`, `0004`, ADR 5")) == []
    assert list(lost("`docs/adr/0006`, [x](adr/0001-old-name.md)")) == ["0006", "0001-old-name.md"]
    assert list(lost("docs/adr/0043, 0055. And `docs/adr/0003` and `0044`")) == ["0055", "0044"]
    assert list(lost("ADR 53, [decision 9](#x), [decision 12](#y)")) == ["53", "12"]
