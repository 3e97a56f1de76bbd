"""The shape of a transition table: what a machine does with a transaction, for every state and every event.

Each machine states its table as one constant, `TRANSITIONS`, in its own room: (state, event) -> `Cell`, with a cell for
every pair. Events are of two kinds. A request, an answer or a deadline meets `decide`: its cell says what to write, and which
state follows after that record was applied. A record of the log meets `apply`, live and in recovery. Both look their cells up,
so the table is the program and not a description of it. Tests walk every cell, and `docs/state_diagrams.py` prints the tables.

States and events are IntEnums (None may represent a state): hashing them takes no Python call, so a look-up takes about 50 ns.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from pulsar_txn.wire.errors import ServerError

StateT = TypeVar("StateT")
EventT = TypeVar("EventT")


class Act(enum.Enum):
    """Answer of a machine to an event."""

    WRITE = "write a record"
    ASK = "ask the coordinator"
    ANSWER = "answer without a record"
    JOIN = "wait for the end under way"
    REFUSE = "refuse"
    FOLD = "fold the record in"
    SKIP = "do nothing"


class Cell(NamedTuple, Generic[StateT]):
    """Cell of a table, for a state and an event: the act, the state after it, and for REFUSE the code of the refusal."""

    act: Act
    to: StateT
    code: ServerError | None = None


Table: TypeAlias = Mapping[tuple[StateT, EventT], Cell[StateT]]

WRITE: Final = Act.WRITE
ASK: Final = Act.ASK
ANSWER: Final = Act.ANSWER
JOIN: Final = Act.JOIN
REFUSE: Final = Act.REFUSE
FOLD: Final = Act.FOLD
SKIP: Final = Act.SKIP
