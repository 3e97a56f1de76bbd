"""Every relative link and anchor of the pages leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


def pages() -> list[Path]:
    top = [CHECKOUT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    deeper = [page for folder in ("docs", "examples", "bench") for page in sorted((CHECKOUT / folder).rglob("*.md"))]
    return [*top, *deeper]


def links(text: str) -> Iterator[str]:
    yield from (match[1] for match in LINK.finditer(CODE.sub("", FENCE.sub("", text))))


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub and mkdocs form them."""
    titles = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).strip().replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [link for link in links(text) if "://" not in link and not link.startswith("mailto:") and not leads(page, link)]


def leads(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(CHECKOUT):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_no_table_is_cut_in_two_by_an_empty_line() -> None:
    """Rows without a head are shown as text."""
    found = []
    for page in pages():
        lines = FENCE.sub("", page.read_text(encoding="utf-8")).split("\n")
        for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
            if line.startswith("|") and not before.startswith("|") and not re.fullmatch(r"\|[\s:|-]+\|", after):
                found.append(f"{page.relative_to(CHECKOUT)}: {line[:60]}")
    assert found == []


def test_a_page_of_the_docs_links_only_within_the_docs() -> None:
    """So that the pages work as a site of their own; other files are named, not linked."""
    outside = [
        f"{page.name}: {link}"
        for page in sorted((CHECKOUT / "docs").rglob("*.md"))
        for link in links(page.read_text(encoding="utf-8"))
        if "://" not in link and link.partition("#")[0] and not (page.parent / link).resolve().is_relative_to(CHECKOUT / "docs")
    ]
    assert outside == []


def test_links_are_found_and_code_is_passed_over(tmp_path: Path) -> None:
    text = "[a](b.md) ![p](q.svg) `[no](no.md)`\n```\n[no](no.md)\n```\n[c](#d) [w](https://x/y_(z))\n"
    assert list(links(text)) == ["b.md", "q.svg", "#d", "https://x/y_(z)"]


def test_a_missing_page_and_a_missing_anchor_are_found() -> None:
    page = CHECKOUT / "README.md"
    assert not leads(page, "docs/no-such-page.md")
    assert not leads(page, "CONTRIBUTING.md#no-such-heading")
    assert leads(page, "CONTRIBUTING.md#the-tests")


def test_every_decision_is_listed_and_has_a_number_of_its_own() -> None:
    folder = CHECKOUT / "docs" / "adr"
    decisions = sorted(page.name for page in folder.glob("0*.md"))
    assert sorted(links((folder / "index.md").read_text(encoding="utf-8"))) == decisions
    numbers = [name[:4] for name in decisions]
    assert len(set(numbers)) == len(numbers)
