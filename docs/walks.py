"""Draws the pictures of the home page and of the architecture page: docs/diagrams/walk-*.svg, problem.svg and icon.svg.

Each walk is drawn twice: `site.css` shows the narrow picture, `walk-*-narrow.svg`, on a phone.

python docs/walks.py           writes them
python docs/walks.py --check   ends with 1 when a file differs from what this program draws

A walk is a sequence diagram: who takes part, and the steps in the order of time. It is data; the drawing is below it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

import attrs

DIAGRAMS: Final = Path(__file__).parent / "diagrams"

ROW: Final = 38
HEAD: Final = 34
TITLE: Final = 40

PAPER: Final = "#f7f9fc"
INK: Final = "#1b2a41"
LINE: Final = "#51627a"
CALM: Final = "#e3e9f5"
GOOD: Final = "#2e7d32"
BAD: Final = "#c62828"
DECISION: Final = "#3949ab"


@attrs.frozen
class Tells:
    """One participant tells another one something: an arrow."""

    source: int
    target: int
    words: str
    dashed: bool = False


@attrs.frozen
class Does:
    """A participant does something by itself: a box on its line."""

    who: int
    words: str
    colour: str = CALM


@attrs.frozen
class Break:
    """Something happens to the whole picture: a line across it."""

    words: str


@attrs.frozen
class Walk:
    """A sequence diagram: its name, its title, who takes part, and the steps."""

    name: str
    title: str
    lanes: tuple[str, ...]
    steps: tuple[Tells | Does | Break, ...]


SEND: Final = Walk(
    "walk-send",
    "A transactional send",
    ("client", "coordinator", "topic", "readers"),
    (
        Tells(0, 1, "NEW_TXN, first time"),
        Does(1, "OPEN: on disk"),
        Tells(1, 0, "id (3,42)", dashed=True),
        Tells(0, 1, "ADD_PARTITION, once"),
        Does(1, "registered: on disk"),
        Tells(1, 0, "done", dashed=True),
        Tells(0, 2, "SEND with id (3,42)"),
        Tells(2, 1, "open? registered?"),
        Tells(1, 2, "yes", dashed=True),
        Does(2, "message: on disk"),
        Tells(2, 0, "receipt", dashed=True),
        Does(3, "see nothing yet"),
    ),
)

COMMIT: Final = Walk(
    "walk-commit",
    "A commit",
    ("client", "coordinator", "topic", "subscription"),
    (
        Does(0, "all receipts are here"),
        Tells(0, 1, "END_TXN: commit"),
        Does(1, "COMMITTING: on disk", DECISION),
        Tells(1, 2, "commit (3,42)"),
        Tells(1, 3, "commit (3,42)"),
        Does(2, "marker: on disk"),
        Does(3, "settled: on disk"),
        Tells(2, 1, "done", dashed=True),
        Tells(3, 1, "done", dashed=True),
        Tells(1, 0, "committed", dashed=True),
        Does(1, "COMMITTED: later"),
    ),
)

RESTART: Final = Walk(
    "walk-restart",
    "A restart in the middle of a commit",
    ("client", "coordinator", "journal", "topic"),
    (
        Tells(0, 1, "END_TXN: commit"),
        Tells(1, 2, "COMMITTING"),
        Does(2, "on disk: decided", DECISION),
        Break("the broker is killed; nothing in memory survives"),
        Tells(2, 1, "records, applied again"),
        Tells(2, 3, "entries, applied again"),
        Does(1, "ready: COMMITTING"),
        Tells(0, 1, "END_TXN again"),
        Tells(1, 3, "commit (3,42)"),
        Tells(3, 2, "marker"),
        Does(2, "on disk"),
        Tells(3, 1, "done", dashed=True),
        Tells(1, 0, "committed", dashed=True),
    ),
)


@attrs.frozen
class Story:
    """One column of the picture of the problem: what happens, from top to bottom, and how it ends."""

    title: str
    steps: tuple[str, ...]
    end: str
    good: bool = False


CRASH: Final = "crash"

STORIES: Final = (
    Story("Send first", ("receive order", "send invoice", CRASH, "receive again", "send invoice"), "two invoices"),
    Story("Acknowledge first", ("receive order", "acknowledge", CRASH, "nothing to do", "no invoice"), "order lost"),
    Story(
        "One transaction", ("receive order", "send: hidden", CRASH, "receive again", "send, commit"), "one invoice", good=True
    ),
)


@attrs.frozen
class Grid:
    """Where the lanes of a walk are, and how large its words are."""

    lane: int
    margin: int
    head: int
    letter: float
    size: int

    def x(self, lane: int) -> int:
        """The middle of a lane."""
        return self.margin + self.lane * lane


WIDE: Final = Grid(lane=200, margin=110, head=150, letter=7.0, size=13)
NARROW: Final = Grid(lane=88, margin=48, head=84, letter=6.6, size=12)
"""As wide as the text of a page on a phone."""


def draw(walk: Walk, grid: Grid) -> str:
    """The diagram as SVG."""
    width = 2 * grid.margin + grid.lane * (len(walk.lanes) - 1)
    bottom = TITLE + HEAD + ROW * len(walk.steps) + 22
    lines = [*_open(width, bottom + 14, walk.title), _text(width // 2, 25, walk.title, size=15, bold=True)]
    for number, lane in enumerate(walk.lanes):
        x = grid.x(number)
        lines.append(f'<path d="M{x},{TITLE + HEAD} V{bottom}" stroke="{LINE}" stroke-opacity="0.45"/>')
        lines += _box(x, TITLE + HEAD // 2, lane, grid.head, CALM, bold=True, size=grid.size)
    for number, step in enumerate(walk.steps):
        lines += _step(step, TITLE + HEAD + 30 + ROW * number, width, grid)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _step(step: Tells | Does | Break, y: int, width: int, grid: Grid) -> Iterator[str]:
    half = round(len(step.words) * grid.letter / 2)
    match step:
        case Tells(source, target, words, dashed):
            begin, end = grid.x(source), grid.x(target)
            style = ' stroke-dasharray="5 4"' if dashed else ""
            tip = end - 2 if end > begin else end + 2
            yield f'<path d="M{begin},{y} H{tip}" stroke="{LINE}" stroke-width="1.5"{style} marker-end="url(#tip)"/>'
            # The words are beside the line of the sender, so that an arrow over several lines can be read.
            side = begin + (grid.lane // 2 if end > begin else -grid.lane // 2)
            yield from _words(_inside(side, half, width), y - 6, words, half, grid)
        case Does(who, words, colour):
            box = half + 8 if grid is NARROW else 89
            yield from _box(_inside(grid.x(who), box, width), y - 4, words, 2 * box, colour, size=grid.size)
        case Break(words):
            yield f'<path d="M20,{y - 4} H{width - 20}" stroke="{BAD}" stroke-width="2" stroke-dasharray="9 5"/>'
            yield from _words(width // 2, y, words, half * 8 // 7, grid, colour=BAD, bold=True)


def _inside(x: int, half: int, width: int) -> int:
    """The middle of something of this half width, moved so that all of it is in the picture."""
    return min(max(x, half + 4), width - half - 4)


def _words(x: int, y: int, words: str, half: int, grid: Grid, *, colour: str = INK, bold: bool = False) -> Iterator[str]:
    """Words that cover the lines behind them."""
    yield f'<rect x="{x - half}" y="{y - 11}" width="{2 * half}" height="12" fill="{PAPER}"/>'
    yield _text(x, y, words, size=grid.size, colour=colour, bold=bold)


def problem() -> str:
    """The picture of the home page: a worker is killed at the worst moment, three times."""
    column, row, head = 164, 46, 44
    width, height = column * len(STORIES) + 12, head + row * 6 + 8
    lines = _open(width, height, "A worker is killed between its steps, without and with a transaction")
    for number, story in enumerate(STORIES):
        x = 6 + column * number + column // 2
        lines.append(_text(x, 28, story.title, size=16, bold=True))
        lines.append(f'<path d="M{x},{head} V{height - 30}" stroke="{LINE}" stroke-opacity="0.45"/>')
        for place, words in enumerate(story.steps):
            y = head + row * place + 18
            lines += [_bolt(x, y)] if words == CRASH else _box(x, y, words, column - 16, CALM, size=15)
        lines += _box(x, head + row * 5 + 18, story.end, column - 16, GOOD if story.good else BAD, size=15)
    return "\n".join([*lines, "</svg>"]) + "\n"


def icon() -> str:
    """Two arrows between two lines: everything goes over, or nothing does."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        f'<rect width="32" height="32" rx="6" fill="{DECISION}"/>'
        '<path d="M7,11 H23 l-5,-5 M25,21 H9 l5,5" fill="none" stroke="#fff" stroke-width="3"/></svg>\n'
    )


def _open(width: int, height: int, title: str) -> list[str]:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    tip = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<defs><marker id="tip" {tip}><path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]


def _text(x: int, y: int, words: str, *, size: int = 13, bold: bool = False, colour: str = INK) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" fill="{colour}"{weight}>{escape(words)}</text>'


def _box(x: int, y: int, words: str, width: int, fill: str, *, bold: bool = False, size: int = 13) -> Iterator[str]:
    edge = LINE if fill == CALM else fill
    yield f'<rect x="{x - width // 2}" y="{y - 14}" width="{width}" height="28" rx="6" fill="{fill}" stroke="{edge}"/>'
    yield _text(x, y + 5, words, colour=INK if fill == CALM else "#fff", bold=bold or fill != CALM, size=size)


def _bolt(x: int, y: int) -> str:
    return f'<path d="M{x + 4},{y - 22} L{x - 11},{y + 3} h9 L{x - 5},{y + 22} L{x + 11},{y - 5} h-9 z" fill="{BAD}"/>'


def pictures() -> dict[Path, str]:
    """Every file that this program writes, and what it holds."""
    walks = (SEND, COMMIT, RESTART)
    wide = {DIAGRAMS / f"{walk.name}.svg": draw(walk, WIDE) for walk in walks}
    narrow = {DIAGRAMS / f"{walk.name}-narrow.svg": draw(walk, NARROW) for walk in walks}
    return {**wide, **narrow, DIAGRAMS / "problem.svg": problem(), DIAGRAMS / "icon.svg": icon()}


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` name those that differ; the exit code."""
    stale = {path: text for path, text in pictures().items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path} differs from what docs/walks.py draws: run python docs/walks.py\n")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
