"""The site of `make docs`: whole, without anything from another host, with its list for language models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import site_hooks
import walks

CHECKOUT = Path(__file__).parents[2]

FETCHED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]*)"|<link\b([^>]*)>""")
HREF = re.compile(r'\bhref="([^"]*)"')
STYLE_URL = re.compile(r"(?:url\(|@import\s)[\"']?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it; a warning is a failure."""
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def fetched(html: str) -> list[str]:
    """The addresses that a browser fetches by itself when it shows a page."""
    found = []
    for source, link in FETCHED.findall(html):
        if source:
            found.append(source)
        elif (href := HREF.search(link)) and 'rel="canonical"' not in link:
            found.append(href[1])
    return found


def test_no_page_of_the_site_fetches_anything_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    elsewhere = {
        (page.name, address)
        for page in pages
        for address in fetched(page.read_text(encoding="utf-8"))
        if "//" in address and not address.startswith("data:")
    }
    assert elsewhere == set()
    styles = [*site.rglob("*.css"), *site.rglob("*.svg"), *pages]
    assert [style.name for style in styles if STYLE_URL.search(style.read_text(encoding="utf-8"))] == []


def test_what_a_browser_fetches_is_found() -> None:
    html = '<script async src="https://x/a.js"></script><link rel="stylesheet" href="//x/b.css"><a href="https://x/">x</a>'
    assert fetched(html) == ["https://x/a.js", "//x/b.css"]
    assert STYLE_URL.search("@font-face { src: url(https://x/font.woff2) }")


def test_a_phone_is_shown_pictures_that_are_as_narrow_as_its_page(site: Path) -> None:
    style = (site / "site.css").read_text(encoding="utf-8")
    instead = dict(re.findall(r'img\[src\$="diagrams/(walk-\w+)\.svg"\] \{\s*content: url\("([^"]+)"\)', style))
    assert set(instead) == {walk.name for walk in (walks.SEND, walks.COMMIT, walks.RESTART)}
    for picture in instead.values():
        width = re.search(r' width="(\d+)"', (site / picture).read_text(encoding="utf-8"))
        assert width is not None
        assert int(width[1]) <= 390 - 2 * 14, "a phone of 390 px, and the margins of the page"


def test_the_bar_has_four_sections(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    tabs = home[home.index('class="md-tabs"') :]
    tabs = tabs[: tabs.index("</nav>")]
    names = [name.strip() for name in re.findall(r'<a [^>]*class="md-tabs__link">\s*([^<]+?)\s*</a>', tabs)]
    assert names == ["Start", "How-to", "Reference", "How it works"]


def test_code_is_highlighted_and_can_be_copied(site: Path) -> None:
    tutorial = (site / "tutorial" / "index.html").read_text(encoding="utf-8")
    assert '<span class="kn">import</span>' in tutorial
    assert '"content.code.copy"' in tutorial


def test_the_reference_shows_what_programs_use_and_no_parts(site: Path) -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").rglob("*.html"))
    ids = set(re.findall(r'id="(pulsar_txn\.[\w.]+)"', shown))
    assert {"pulsar_txn.client.AsyncConsumer.receive", "pulsar_txn.client.AsyncTransaction.commit"} <= ids
    assert {name for name in ids if name.endswith((".inside", ".unit")) or "._" in name} == set()


def test_llms_txt_lists_every_page_of_the_navigation_and_its_links_lead_somewhere(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# pulsar-txn\n\n> Transactions for Apache Pulsar in Python")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Start", "How-to", "Reference", "How it works"]
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    navigation = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").split("exclude_docs")[0]
    named = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert len(links) == len(set(links)) == len(named)
    assert [link for link in links if not (site / link).exists()] == []
    assert {link for link in links if link.endswith(".md")} <= set(named)


def test_the_markdown_beside_a_page_is_its_source(site: Path) -> None:
    assert "## Consume, process, produce" in (site / "tutorial.md").read_text(encoding="utf-8")


def page_of(name: str, title: str, **meta: str) -> Any:
    return SimpleNamespace(title=title, url=name.removesuffix(".md") + "/", meta=meta, file=SimpleNamespace(src_uri=name))


def test_a_line_of_llms_txt_says_what_the_page_is_about() -> None:
    sections = [SimpleNamespace(title="Start", children=[page_of("a.md", "A"), page_of("b.md", "B"), page_of("c.md", "C")])]
    sources = {
        "a.md": "# A\n\n<!-- run -->\n```python\nx = 1\n```\n\nThe **first** [page](b.md) says this. And that.",
        "b.md": "# B\n\n::: pulsar_txn.client.Client\n",
        "c.md": "# C\n\n| a | table |\n",
    }
    assert list(site_hooks.llms_txt("T", "S", sections, sources))[4:] == [
        "## Start",
        "",
        "- [A](a.md): The first page says this.",
        "- [B](b/)",
        "- [C](c.md)",
    ]


def test_the_pictures_are_those_that_the_program_draws() -> None:
    assert walks.main(["--check"]) == 0


@pytest.mark.parametrize("walk", [walks.SEND, walks.COMMIT, walks.RESTART], ids=lambda walk: str(walk.name))
def test_a_walk_tells_only_those_who_take_part(walk: walks.Walk) -> None:
    tells = [step for step in walk.steps if isinstance(step, walks.Tells)]
    assert {place for step in tells for place in (step.source, step.target)} <= set(range(len(walk.lanes)))
    assert all(step.source != step.target for step in tells)
