"""For MkDocs: writes `llms.txt`, the list of all pages for language models, and the Markdown of each page beside its HTML.

The format is that of https://llmstxt.org: a title, a summary, and a list of links for each section of the navigation. A link
leads to the Markdown of a page. A page of the reference has no Markdown of its own, because its text comes from docstrings:
its link leads to its HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_DIRECTIVE: Final = re.compile(r"^::: ", re.MULTILINE)
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_NOT_PROSE: Final = ("#", "<", "!", "|", "* ", "- ", ":::")

_sources: Final[dict[str, str]] = {}
_sections: Final[list[Any]] = []


def on_nav(nav: Any, **_: Any) -> Any:
    """Called before the pages are read: keep the sections, begin with no pages."""
    _sources.clear()
    _sections[:] = nav.items
    return nav


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page, before its directives are carried out: keep its Markdown."""
    _sources[page.file.src_uri] = markdown
    return markdown


def on_post_build(*, config: Any, **_: Any) -> None:
    """Called after the site is complete: write the files."""
    site = Path(config["site_dir"])
    for name, markdown in _sources.items():
        if not _DIRECTIVE.search(markdown):
            (site / name).write_text(markdown, encoding="utf-8")
    lines = llms_txt(config["site_name"], config["site_description"], _sections, _sources)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def llms_txt(title: str, summary: str, sections: list[Any], sources: Mapping[str, str]) -> Iterator[str]:
    """The lines of the file."""
    yield f"# {title}"
    yield ""
    yield f"> {summary}"
    for section in sections:
        yield from ("", f"## {section.title}", "")
        for page in section.children:
            source = sources[page.file.src_uri]
            address = page.url if _DIRECTIVE.search(source) else page.file.src_uri
            said = page.meta.get("description") or first_sentence(source)
            yield f"- [{page.title}]({address})" + (f": {said}" if said else "")


def first_sentence(markdown: str) -> str:
    """The first sentence of the first paragraph of prose, without the marks of links; empty when the page has no prose."""
    for paragraph in re.split(r"\n\s*\n", _FENCE.sub("", markdown)):
        if paragraph.strip() and not paragraph.lstrip().startswith(_NOT_PROSE):
            text = " ".join(_LINK.sub(r"\1", paragraph).replace("**", "").split())
            return re.split(r"(?<=[.!?:])\s", text, maxsplit=1)[0]
    return ""
