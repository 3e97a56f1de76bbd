"""Prints the transition tables of the machines as pages: docs/state-machines.md and docs/diagrams/*.svg.

python docs/state_diagrams.py           writes them
python docs/state_diagrams.py --check   ends with 1 when they are not what the tables say

An edge is an event that brings a transaction into another state; the table below it says what else an event does.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import attrs

from pulsar_txn.broker.dispatch import holders
from pulsar_txn.client.state import outgoing, owners, transaction
from pulsar_txn.rm_pending_ack import transitions as pending_ack
from pulsar_txn.rm_producer import transitions as buffer
from pulsar_txn.rm_producer.half import transitions as half
from pulsar_txn.tc import table as coordinator
from pulsar_txn.tc.lane_table import LANE_TRANSITIONS

DOCS: Final = Path(__file__).parent

BOX_WIDTH: Final = 124
BOX_HEIGHT: Final = 34
STEP: Final = 236
LINE: Final = 14
FIRST_ARC: Final = 34
NEXT_ARC: Final = 60

_FONT: Final = 'font-family="sans-serif" font-size="12" role="img"'
_ARROW_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#456"/></marker></defs>'
)


@attrs.frozen
class Cell:
    """What one event does in one state: words for the table, and the state after it."""

    words: str
    after: str


@attrs.frozen
class Machine:
    """A transition table in words. `cells` has every (state, event)."""

    name: str
    title: str
    source: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]

    def edges(self) -> dict[tuple[str, str], list[str]]:
        """(from, to) -> the events that lead there, for every change of state."""
        edges: dict[tuple[str, str], list[str]] = {}
        for (state, event), cell in self.cells.items():
            if cell.after != state:
                edges.setdefault((state, cell.after), []).append(event)
        return edges


def tc() -> Machine:
    """The coordinator."""
    return _machine("tc", "A transaction at its coordinator", "tc/pulsar_txn/tc/table.py", coordinator.TRANSITIONS)


def lanes() -> Machine:
    """The lanes of a coordinator beside a cluster."""
    return _machine("lanes", "A lane of a coordinator beside a cluster", "tc/pulsar_txn/tc/lane_table.py", LANE_TRANSITIONS)


def rm_producer() -> Machine:
    """The in-topic buffer."""
    source = "rm_producer/pulsar_txn/rm_producer/transitions.py"
    return _machine("rm_producer", "A transaction at a topic", source, buffer.TRANSITIONS)


def half_topic() -> Machine:
    """The buffer with half messages."""
    source = "rm_producer/pulsar_txn/rm_producer/half/transitions.py"
    return _machine("half_topic", "A transaction at a topic with half messages", source, half.TRANSITIONS)


def rm_pending_ack() -> Machine:
    """The pending-ack handle."""
    source = "rm_pending_ack/pulsar_txn/rm_pending_ack/transitions.py"
    return _machine("rm_pending_ack", "A transaction at a subscription", source, pending_ack.TRANSITIONS)


def outgoing_batch() -> Machine:
    """The outgoing messages of a producer's partition."""
    source = "client/pulsar_txn/client/state/outgoing.py"
    return _machine("outgoing", "A batch of an outgoing partition", source, outgoing.TRANSITIONS)


def client_transaction() -> Machine:
    """The transaction as its client sees it."""
    source = "client/pulsar_txn/client/state/transaction.py"
    return _machine("transaction", "A transaction at its client", source, transaction.TRANSITIONS)


def delivered_message() -> Machine:
    """A message that a broker delivers to a consumer."""
    return _machine("delivery", "A message at its consumer", "client/pulsar_txn/client/state/owners.py", owners.TRANSITIONS)


def dispatched_message() -> Machine:
    """A message as the dispatch of its subscription sees it."""
    source = "broker/pulsar_txn/broker/dispatch/holders.py"
    return _machine("dispatch", "A message at its subscription", source, holders.TRANSITIONS)


MACHINES: Final[tuple[Callable[[], Machine], ...]] = (
    tc,
    lanes,
    rm_producer,
    half_topic,
    rm_pending_ack,
    client_transaction,
    outgoing_batch,
    delivered_message,
    dispatched_message,
)


def _machine(name: str, title: str, source: str, table: Mapping[Any, Any]) -> Machine:
    """A table in words, its states and events in the order of their numbers."""
    cells = {(_words(state), _words(event)): Cell(_answer(done), _words(done.to)) for (state, event), done in table.items()}
    states = sorted({state for state, _ in table}, key=lambda state: -1 if state is None else state)
    events = sorted({event for _, event in table})
    return Machine(name, title, source, tuple(map(_words, states)), tuple(map(_words, events)), cells)


def _answer(done: Any) -> str:
    """What a cell does: its act, or the code of its refusal."""
    code = getattr(done, "code", None)  # a client's machine refuses nothing
    words: str = done.act.value if code is None else code.name
    return words


def _words(member: enum.IntEnum | None) -> str:
    return "unknown" if member is None else member.name.lower().replace("_", " ")


def page(machines: list[Machine]) -> str:
    """The page with all diagrams and tables."""
    parts = [
        "# State machines",
        "",
        "Printed by `docs/state_diagrams.py` from the transition tables that the machines read; do not edit by hand.",
        "The source has the prose of each table above it.",
    ]
    for machine in machines:
        parts += [
            "",
            f"## {machine.title}",
            "",
            f"Source: `{machine.source}`",
            "",
            f"![{machine.title}](diagrams/{machine.name}.svg)",
            "",
        ]
        parts += _table(machine)
    return "\n".join(parts) + "\n"


def _table(machine: Machine) -> Iterator[str]:
    yield "| " + " | ".join(["", *machine.states]) + " |"
    yield "|---" * (len(machine.states) + 1) + "|"
    for event in machine.events:
        row = [_cell(state, machine.cells[state, event]) for state in machine.states]
        yield f"| **{event}** | " + " | ".join(row) + " |"


def _cell(state: str, cell: Cell) -> str:
    return cell.words if cell.after == state else f"{cell.words} → **{cell.after}**"


def picture(machine: Machine) -> str:
    """The states in a row; edges to the right are arcs above it, edges to the left arcs below."""
    edges = machine.edges()
    above = max((_reach(machine, edge, events) for edge, events in edges.items() if _leads_right(machine, edge)), default=0)
    below = max((_reach(machine, edge, events) for edge, events in edges.items() if not _leads_right(machine, edge)), default=0)
    width = STEP * (len(machine.states) - 1) + BOX_WIDTH + 40
    top = above + 16
    height = top + BOX_HEIGHT + below + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {_FONT}>',
        f"<title>{escape(machine.title)}</title>",
        _ARROW_TIP,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for edge, events in sorted(edges.items(), key=lambda item: -_distance(machine, item[0])):
        lines += _arc(machine, edge, events, top)
    for state in machine.states:
        lines += _box(machine, state, top)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _distance(machine: Machine, edge: tuple[str, str]) -> int:
    return abs(machine.states.index(edge[1]) - machine.states.index(edge[0]))


def _leads_right(machine: Machine, edge: tuple[str, str]) -> bool:
    return machine.states.index(edge[1]) > machine.states.index(edge[0])


def _apex(machine: Machine, edge: tuple[str, str]) -> int:
    """Height of the arc over its boxes; a little more for the longer ones, so that labels of nested arcs stay apart."""
    return FIRST_ARC + NEXT_ARC * (_distance(machine, edge) - 1)


def _reach(machine: Machine, edge: tuple[str, str], events: list[str]) -> int:
    return _apex(machine, edge) + LINE * len(events) + 6


def _centre(machine: Machine, state: str) -> int:
    return 20 + BOX_WIDTH // 2 + STEP * machine.states.index(state)


def _arc(machine: Machine, edge: tuple[str, str], events: list[str], top: int) -> Iterator[str]:
    right = _leads_right(machine, edge)
    side = 1 if right else -1
    # Arcs leave and enter a box at places of their own: near ones at its corner, far ones nearer to its middle.
    inset = max(8, BOX_WIDTH // 2 - 12 - 16 * (_distance(machine, edge) - 1))
    start, end = _centre(machine, edge[0]) + side * inset, _centre(machine, edge[1]) - side * inset
    base = top if right else top + BOX_HEIGHT
    peak = base - side * _apex(machine, edge)
    turn = base - side * (_apex(machine, edge) * 4 // 3)
    curve = f"M{start},{base} C{start},{turn} {end},{turn} {end},{base}"
    yield f'<path d="{curve}" fill="none" stroke="#456" marker-end="url(#tip)"/>'
    middle = (start + end) // 2
    longest = max(map(len, events)) * 6 + 8
    first = peak - LINE * len(events) + 2 if right else peak + 3
    height = LINE * len(events)
    yield f'<rect x="{middle - longest // 2}" y="{first}" width="{longest}" height="{height}" fill="#fff" opacity="0.9"/>'
    for number, event in enumerate(events):
        yield f'<text x="{middle}" y="{first + LINE * number + 11}" text-anchor="middle" fill="#234">{escape(event)}</text>'


def _box(machine: Machine, state: str, top: int) -> Iterator[str]:
    left = _centre(machine, state) - BOX_WIDTH // 2
    yield f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="#e8f0f8" stroke="#456"/>'
    middle = _centre(machine, state), top + BOX_HEIGHT // 2 + 4
    yield f'<text x="{middle[0]}" y="{middle[1]}" text-anchor="middle" font-weight="bold" fill="#123">{escape(state)}</text>'


def pages() -> dict[Path, str]:
    """Every file that this program writes, and what it holds."""
    machines = [make() for make in MACHINES]
    pictures = {DOCS / "diagrams" / f"{machine.name}.svg": picture(machine) for machine in machines}
    return {DOCS / "state-machines.md": page(machines), **pictures}


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` name those that are not current; the exit code."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path} is not what the transition tables say: run python docs/state_diagrams.py\n")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
